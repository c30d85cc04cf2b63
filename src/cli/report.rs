//! `report`: one page that explains what an input does, for somebody who has a crash.

mod disk;
mod entries;
mod links;
mod page;
mod program;
mod scale;
mod shown;
mod strip;

use std::path::{Path, PathBuf};

use qcowfuzz::harness::Checks;
use qcowfuzz::images::FileNames;
use qcowfuzz::panics::PanicNotes;

use super::account::{Account, Verdict};
use super::examine::Examiner;
use super::files::{self, Existing};
use super::print::say;
use super::runner::Target;
use super::{Exit, Failure, Outcome, qemu};

/// Explain what an input of a fuzz target does, on one page for a browser
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The page has the program and what each operation came to, the files that it builds drawn to scale,
the guest disk as the reference model, the walker and qemu-img see it, and every field and entry with
its bits in words. What an operation wrote is marked where the mouse or the keyboard's focus is. It is
one file that asks for nothing else, and can be sent to others. Very long inputs are not shown in full;
'qcowfuzz replay --json' has all of it.

qemu-img is asked where it is installed, of what a program builds; it follows no name in an image. An
input of raw_image is somebody's file: of that it is not asked.

Exit codes: 0 nothing was found; 1 a violation was found; 2 the input could not be read, or the page
not be written.

Example: qcowfuzz report artifacts/map_extents/crash-1f0c --html crash.html")]
pub struct Arguments {
    /// The input, a file of any content; - for standard input
    input: PathBuf,
    /// The file that the page is written to
    #[arg(long, value_name = "F")]
    html: PathBuf,
    /// The fuzz target that the input is for
    #[arg(long, value_enum, default_value_t)]
    target: Target,
    /// Replace a file that is there already
    #[arg(long)]
    force: bool,
}

/// What qemu-img has to say of the disk.
pub struct Theirs {
    /// Which one there is.
    pub version: Option<String>,
    /// Its extents, or in words why there are none.
    pub answer: Result<qemu::Map, String>,
}

/// Writes the page.
pub fn run(arguments: &Arguments) -> Outcome {
    let Arguments { input, html, target, force } = arguments;
    if is_same_file(input, html) {
        return Err(Failure::at(html, "is the input itself, expected another file"));
    }
    let bytes = files::read_input(input)?;
    if bytes.is_empty() {
        return Err(Failure::at(input, "is empty, expected an input of a fuzz target"));
    }
    let account = {
        let _silence = PanicNotes::take_over();
        let names = FileNames::default();
        Examiner::new(*target, Checks::AtCheckpoints, names).examine(input, &bytes)
    };
    let page = page::page(&account, &theirs(&account, *target));
    files::write(html, Existing::forced(*force), page.as_bytes())?;
    say(html.display())?;
    Ok(Exit::after(usize::from(account.verdict == Verdict::Violation)))
}

/// Whether the page would take the place of the input.
fn is_same_file(input: &Path, html: &Path) -> bool {
    match (input.canonicalize(), html.canonicalize()) {
        (Ok(input), Ok(html)) => input == html,
        _ => false,
    }
}

fn theirs(account: &Account, target: Target) -> Theirs {
    let answer = match (target, account.evidence.explanation()) {
        (Target::RawImage, _) => {
            Err("not asked: the input is a file, and whatever it names is nobody's to open".into())
        }
        (Target::Refcounts, _) => {
            Err("not asked: of refcounts the counts are judged, and no disk is walked".into())
        }
        (_, Some(explanation)) => qemu::map(explanation.built()),
        (_, None) => Err("not asked: the input could not be explained".into()),
    };
    Theirs { version: answer.is_ok().then(qemu::version).flatten(), answer }
}

#[cfg(test)]
mod tests;
