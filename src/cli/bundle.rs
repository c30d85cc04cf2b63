//! `bundle`: an input and all that there is to tell of it, in one archive: what one attaches to a bug report.

use std::path::{Path, PathBuf};

use qcowfuzz::findings::PanicNotes;
use qcowfuzz::findings::bundle;
use qcowfuzz::findings::examiner::Examiner;
use qcowfuzz::findings::report::Verdict;
use qcowfuzz::harness::Checks;
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::images::FileNames;

use super::exit::{Exit, Failure, Outcome};
use super::input::{self, reject_if_crashes};
use super::print::say;
use super::save;
use super::target;

/// Pack an input with all that is known of it into an archive: what one attaches to a bug report
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The archive has one folder: the input, the program as text, what replay tells of it as text and as \
JSON, the image that it builds with the files that it names, the map of the disk as the reference \
model, the walker and qemu-img have it, versions, and reproduce.sh, which shows the bug again. The \
same input gives the same archive, but for versions.

Exit codes: 0 the archive was written; 2 nothing is found in INPUT, or a file could not be read or \
written.

Example: qcowfuzz bundle small -o zeros-moved.tar")]
pub struct Arguments {
    /// The input, which shows a bug
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// Where the archive goes
    #[arg(short, value_name = "F.tar")]
    output: PathBuf,
    /// The fuzz target that the input is for
    #[arg(long, value_parser = target::parser(), default_value = target::DEFAULT)]
    target: TargetKind,
    /// Replace the output if it is there already
    #[arg(long)]
    force: bool,
}

/// Packs the input.
pub fn run(arguments: &Arguments) -> Outcome {
    let Arguments { input, output, target, force } = arguments;
    let existing = save::not_the_input(output, input, *force)?;
    let bytes = input::read_input(input)?;
    reject_if_crashes(input, &bytes, *target)?;
    let _silence = PanicNotes::take_over();
    let mut examiner = Examiner::new(*target, Checks::AtCheckpoints, FileNames::default());
    // By the name that it has in the archive: where it lay is nobody's business.
    let report = examiner.examine(Path::new("input"), &bytes);
    if report.verdict != Verdict::Violation {
        return Err(input::nothing_found(input, *target));
    }
    // The folder is called as the archive is, and unlike an input that lies beside it.
    let mut folder = output.file_stem().unwrap_or("bug".as_ref()).to_os_string();
    folder.push("-bundle");
    let packed = bundle::archive(&report, &bytes, Path::new(&folder))
        .map_err(|error| Failure::at(output, error))?;
    save::write(output, existing, &packed)?;
    say(format_args!("{}: {}", output.display(), report.judgement()))?;
    Ok(Exit::Nothing)
}
