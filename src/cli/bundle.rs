//! `bundle`: packs an input and its evidence into an archive for a bug report.

use std::path::{Path, PathBuf};

use crate::findings::PanicNotes;
use crate::findings::bundle;
use crate::findings::examiner::Examiner;
use crate::findings::report::Verdict;
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
The archive has one folder with the input, the program as text, the output of 'qcowfuzz replay' as text \
and as JSON, the image that the program builds and the files that it names, the map of the disk \
according to the reference model, the walker and qemu-img, the versions of the tools, and reproduce.sh, \
which reproduces the bug. The same input gives the same archive, except for the versions.

Exit codes: 0 the archive was written; 2 INPUT shows no violation, or a file could not be read or \
written.

Example: qcowfuzz bundle small -o zeros-moved.tar")]
pub struct Arguments {
    /// The input that shows the bug; '-' for standard input
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// Write the archive to this file
    #[arg(short, value_name = "F.tar")]
    output: PathBuf,
    /// The fuzz target of the input
    #[arg(long, value_parser = target::parser(), default_value = target::DEFAULT)]
    target: TargetKind,
    /// Replace the output file if it exists
    #[arg(long)]
    force: bool,
}

/// Packs the input.
pub fn run(under_test: &UnderTest, arguments: &Arguments) -> ExitResult {
    let Arguments { input, output, target, force } = arguments;
    let existing = save::not_the_input(output, input, *force)?;
    let bytes = input::read_input(input)?;
    reject_if_crashes(input, &bytes, *target, under_test)?;
    let _silence = PanicNotes::take_over();
    let implementation = showing(&under_test.implementation, *target, &bytes);
    let mut examiner =
        Examiner::new(&implementation, *target, Checks::default(), FileNames::default());
    // The report uses the name in the archive, so that it does not reveal the user's path.
    let report = examiner.examine(Path::new("input"), &bytes);
    if report.verdict != Verdict::Violation {
        return Err(input::nothing_found(input, *target));
    }
    // The folder has the name of the archive, with a suffix that no input beside it has.
    let mut folder = output.file_stem().unwrap_or("bug".as_ref()).to_os_string();
    folder.push("-bundle");
    let packed = bundle::archive(&report, &bytes, Path::new(&folder))
        .map_err(|error| CommandError::at(output, error))?;
    save::write(output, existing, &packed)?;
    say(format_args!("{}: {}", output.display(), report.judgement()))?;
    Ok(Exit::Nothing)
}
