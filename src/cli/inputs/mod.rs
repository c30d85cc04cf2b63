//! Commands about inputs of fuzz targets, with the functions that they share to read an input, and `run-inputs`, which
//! runs the inputs that another process sends.

pub(super) mod evidence;
pub(super) mod minimize;
pub(super) mod replay;
pub(super) mod triage;

use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use crate::base::files;
use crate::base::limits::MAX_INPUT_BYTES;
use crate::cli::options::{self, DEFAULT_MEMORY_MIB, LimitArguments};
use crate::cli::output::{CommandError, Exit, ExitResult, complain};
use crate::cli::under_test::UnderTest;
use crate::disk::image_format::ImageFormat;
use crate::findings::isolation::{IsolatedRun, Isolation, Repeat, run_inputs};
use crate::formats::probe;
use crate::harness::cases::implementation::Implementation;
use crate::harness::targets::TargetKind;
use crate::processes::ProcessLimits;

/// The limits of the run in a separate process that precedes a command's own run.
const RUN_LIMITS: ProcessLimits =
    ProcessLimits { cpu_time: Duration::from_secs(25), memory_mib: DEFAULT_MEMORY_MIB };

/// Reads a whole file; `-` is standard input.
pub fn read(path: &Path) -> Result<Vec<u8>, CommandError> {
    match path.as_os_str() == "-" {
        true => read_standard_input(u64::MAX),
        false => Ok(files::read(path, u64::MAX)?),
    }
}

/// Reads an input of a fuzz target. Rejects more than [`MAX_INPUT_BYTES`] bytes.
/// Prints a warning if the file is an image or a text, and the target runs programs: any bytes are a program.
pub fn read_input(path: &Path, target: TargetKind) -> Result<Vec<u8>, CommandError> {
    let input = match path.as_os_str() == "-" {
        true => files::check_input_length(read_standard_input(MAX_INPUT_BYTES + 1)?)
            .map_err(|error| CommandError::at(path, error))?,
        false => files::read_input(path)?,
    };
    if let Some(what) = no_program(&input).filter(|_| target.runs_programs()) {
        complain(&format!("warning: {}: {what}", path.display()));
    }
    Ok(input)
}

/// Returns what an input is, if it is no program.
fn no_program(input: &[u8]) -> Option<String> {
    let is_text = |text: &str| {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.starts_with(';'));
        lines.next().is_some_and(|line| line.starts_with("image "))
    };
    if str::from_utf8(input).is_ok_and(is_text) {
        let expected = "expected a program; 'qcowfuzz asm' assembles the text";
        return Some(format!("is the text of a program, {expected}"));
    }
    let format = probe(input).ok().filter(|format| *format != ImageFormat::Raw)?;
    let expected = "expected a program, or --target raw_image; 'qcowfuzz check' checks an image";
    Some(format!("is an image ({}), {expected}", format.name()))
}

/// Reads an input, and returns the input that is judged with `implementation` under test ([`TargetKind::judged`]): all
/// that leaves the project is about it.
pub fn read_judged(
    path: &Path,
    target: TargetKind,
    implementation: &Implementation,
) -> Result<Vec<u8>, CommandError> {
    let input = read_input(path, target)?;
    Ok(target.judged(&implementation.facts(), &input).into_owned())
}

fn read_standard_input(most: u64) -> Result<Vec<u8>, CommandError> {
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(most).read_to_end(&mut bytes);
    read.map(|_| bytes).map_err(|error| CommandError::Message(format!("standard input: {error}")))
}

/// Returns the failure of a command that needs a violation and found none in its input.
pub fn nothing_found(path: &Path, target: TargetKind) -> CommandError {
    let what = "no violation was found, expected an input that shows one";
    CommandError::at(path, format_args!("{what} (--target {})", target.name()))
}

/// Rejects an input that ends the process of its run: it would end the caller's process too. `input` was read from
/// `path`. Rejects the target `writes`, too, if the implementation does not write.
pub fn reject_if_crashes(
    path: &Path,
    input: &[u8],
    target: TargetKind,
    under_test: &UnderTest,
) -> Result<(), CommandError> {
    options::reject_reader(target, &under_test.implementation)?;
    let executable = under_test.executable()?;
    let isolation = Isolation { executable, target, limits: RUN_LIMITS };
    match isolation.isolated_run(input)? {
        IsolatedRun::Ended(end) => {
            let what = "expected an input that does not end its process; 'qcowfuzz minimize' accepts this one";
            Err(CommandError::at(path, format_args!("{}, {what}", end.fingerprint())))
        }
        IsolatedRun::Finished(_) => Ok(()),
    }
}

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[arg(long, value_parser = options::target_parser())]
    target: TargetKind,
    /// Run each input twice, and report a difference
    #[arg(long)]
    twice: bool,
    #[command(flatten)]
    limits: LimitArguments,
}

/// Runs the inputs.
pub fn run(implementation: &Implementation, arguments: &Arguments) -> ExitResult {
    // The end of a service or of a container reaches all of its processes; the process that waits for the results
    // handles it.
    let _ = ctrlc::set_handler(|| {});
    let counter = arguments.limits.enforce()?;
    let repeat = if arguments.twice { Repeat::Twice } else { Repeat::Once };
    run_inputs(implementation, arguments.target, repeat, &counter)
        .map(|()| Exit::Nothing)
        .map_err(|error| CommandError::output(&error))
}
