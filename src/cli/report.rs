//! `report`: writes a page that explains what an input does.

use std::path::PathBuf;

use crate::findings::PanicNotes;
use crate::findings::examiner::Examiner;
use crate::findings::page;
use crate::findings::qemu::QemuResult;
use crate::findings::runner::showing;
use crate::harness::Checks;
use crate::harness::targets::TargetKind;
use crate::images::FileNames;

use super::exit::{CommandError, Exit, ExitResult};
use super::input::{self, reject_if_crashes};
use super::print::say;
use super::save;
use super::target;
use super::under_test::UnderTest;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The page shows the program and the effect of each operation, the files that the program builds (to \
scale), the guest disk according to the reference model, the walker and qemu-img, and every field and \
entry with its bits explained. Point at an operation, or move the focus to it, to highlight the bytes \
that it wrote. The page is a single file without references to others, so it can be sent to anyone. It \
shortens very long inputs; 'qcowfuzz replay --json' prints them in full.

If qemu-img is installed, the command runs it on the image that the program builds, without following \
names in the image. It does not run qemu-img on inputs of raw_image, which are files of unknown origin.

Exit codes: 0 the page was written; 2 the input could not be read or ends its process, or the page \
could not be written.

Example: qcowfuzz report artifacts/map_extents/crash-1f0c --html crash.html")]
pub struct Arguments {
    /// The input: a file with any content; '-' for standard input
    input: PathBuf,
    /// Write the page to this file
    #[arg(long, value_name = "F")]
    html: PathBuf,
    /// The fuzz target of the input
    #[arg(long, value_parser = target::parser(), default_value = target::DEFAULT)]
    target: TargetKind,
    /// Replace the output file if it exists
    #[arg(long)]
    force: bool,
}

/// Writes the page.
pub fn run(under_test: &UnderTest, arguments: &Arguments) -> ExitResult {
    let Arguments { input, html, target, force } = arguments;
    let existing = save::not_the_input(html, input, *force)?;
    let bytes = input::read_input(input)?;
    if bytes.is_empty() {
        return Err(CommandError::at(input, "is empty, expected an input of a fuzz target"));
    }
    reject_if_crashes(input, &bytes, *target, under_test)?;
    let report = {
        let _silence = PanicNotes::take_over();
        let names = FileNames::default();
        let implementation = showing(&under_test.implementation, *target, &bytes);
        Examiner::new(&implementation, *target, Checks::default(), names).examine(input, &bytes)
    };
    let page = page::render(&report, &QemuResult::of(&report));
    save::write(html, existing, page.as_bytes())?;
    say(html.display())?;
    Ok(Exit::Nothing)
}
