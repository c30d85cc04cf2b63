//! `report`: one page that explains what an input does, for somebody who has a crash.

mod disk;
mod entries;
mod links;
mod page;
mod program;
mod qemu_result;
mod scale;
mod shown;
mod strip;

use std::path::PathBuf;

use qcowfuzz::findings::panics::PanicNotes;
use qcowfuzz::harness::Checks;
use qcowfuzz::images::files::FileNames;

use super::examine::Examiner;
use super::exit::{Exit, Failure, Outcome};
use super::files;
use super::once::survived;
use super::print::say;
use super::target;
use qcowfuzz::harness::targets::TargetKind;

#[cfg(test)]
mod tests;

use qemu_result::QemuResult;

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
    let existing = files::not_the_input(html, input, *force)?;
    let bytes = files::read_input(input)?;
    if bytes.is_empty() {
        return Err(Failure::at(input, "is empty, expected an input of a fuzz target"));
    }
    survived(input, &bytes, *target)?;
    let account = {
        let _silence = PanicNotes::take_over();
        let names = FileNames::default();
        Examiner::new(*target, Checks::AtCheckpoints, names).examine(input, &bytes)
    };
    let page = page::page(&account, &QemuResult::of(&account, *target));
    files::write(html, existing, page.as_bytes())?;
    say(html.display())?;
    Ok(Exit::Nothing)
}
