//! `report`: one page that explains what an input does, for somebody who has a crash.

use std::path::PathBuf;

use qcowfuzz::findings::PanicNotes;
use qcowfuzz::findings::examiner::Examiner;
use qcowfuzz::findings::page;
use qcowfuzz::harness::Checks;
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::images::FileNames;
use qcowfuzz::internal::findings::qemu::QemuResult;

use super::exit::{Exit, Failure, Outcome};
use super::input::{self, reject_if_crashes};
use super::print::say;
use super::save;
use super::target;

/// Explain what an input of a fuzz target does, on one page for a browser
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The page has the program and what each operation came to, the files that it builds drawn to scale, \
the guest disk as the reference model, the walker and qemu-img see it, and every field and entry with \
its bits in words. What an operation wrote is marked where the mouse or the keyboard's focus is. It is \
one file that asks for nothing else, and can be sent to others. Very long inputs are not shown in full; \
'qcowfuzz replay --json' has all of it.

qemu-img is asked where it is installed, of what a program builds; it follows no name in an image. An \
input of raw_image is somebody's file: of that it is not asked.

Exit codes: 0 the page was written; 2 the input could not be read, ends its process, or the page not \
be written.

Example: qcowfuzz report artifacts/map_extents/crash-1f0c --html crash.html")]
pub struct Arguments {
    /// The input, a file of any content; - for standard input
    input: PathBuf,
    /// The file that the page is written to
    #[arg(long, value_name = "F")]
    html: PathBuf,
    /// The fuzz target that the input is for
    #[arg(long, value_parser = target::parser(), default_value = target::DEFAULT)]
    target: TargetKind,
    /// Replace a file that is there already
    #[arg(long)]
    force: bool,
}

/// Writes the page.
pub fn run(arguments: &Arguments) -> Outcome {
    let Arguments { input, html, target, force } = arguments;
    let existing = save::not_the_input(html, input, *force)?;
    let bytes = input::read_input(input)?;
    if bytes.is_empty() {
        return Err(Failure::at(input, "is empty, expected an input of a fuzz target"));
    }
    reject_if_crashes(input, &bytes, *target)?;
    let report = {
        let _silence = PanicNotes::take_over();
        let names = FileNames::default();
        Examiner::new(*target, Checks::AtCheckpoints, names).examine(input, &bytes)
    };
    let page = page::render(&report, &QemuResult::of(&report));
    save::write(html, existing, page.as_bytes())?;
    say(html.display())?;
    Ok(Exit::Nothing)
}
