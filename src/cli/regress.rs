//! `regress`: an input becomes a test.

use std::io::{self, Write};
use std::path::PathBuf;

use qcowfuzz::findings::PanicNotes;
use qcowfuzz::findings::examiner::Examiner;
use qcowfuzz::findings::regression::Regression;
use qcowfuzz::harness::Checks;
use qcowfuzz::images::FileNames;
use qcowfuzz::programs::Program;

use super::exit::{Exit, Failure, Outcome};
use super::input::{self, reject_if_crashes};
use super::target;
use qcowfuzz::harness::targets::TargetKind;

/// Print an input as a regression test: Rust to paste, or a file for tests/regressions/
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The test assembles the program, runs it, and expects that nothing is found; a test of map_extents \
expects the extents of the reference model, too. It compiles on stable and needs no libFuzzer, only \
qcowfuzz among the dev-dependencies. With --text, what is printed is a file: every one that lies in \
tests/regressions/ is run by 'cargo test'.

The fingerprint is that which is found now. Where the bug is mended already, say it: --fingerprint.

Exit codes: 0 the test was printed; 2 an input could not be read, or nothing is found in it.

Examples: qcowfuzz regress small >> tests/walker.rs
          qcowfuzz regress small --text --story 'The walker ...' > tests/regressions/zeros_moved.txt")]
pub struct Arguments {
    /// The input, minimized
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// The fuzz target that the input is for
    #[arg(long, value_parser = target::parser(), default_value = target::DEFAULT)]
    target: TargetKind,
    /// Print a file for tests/regressions/
    #[arg(long)]
    text: bool,
    /// What was wrong, how it was found, and what became of it
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "Its story: what was wrong, and what became of it."
    )]
    story: String,
    /// The fingerprint, where the input shows nothing any more
    #[arg(long, value_name = "LINE")]
    fingerprint: Option<String>,
    /// What makes the engine under test, in Rust
    #[arg(long, value_name = "EXPRESSION", default_value = "qcowfuzz::harness::Walker::default()")]
    engine: String,
}

/// Prints the test.
pub fn run(arguments: &Arguments) -> Outcome {
    let Arguments { input, target, .. } = arguments;
    target::reject_files(*target, "regress")?;
    let bytes = input::read_input(input)?;
    reject_if_crashes(input, &bytes, *target)?;
    let _silence = PanicNotes::take_over();
    let program = Program::decode(&bytes);
    let regression = Regression {
        fingerprint: fingerprint(arguments, &bytes)?,
        target: target.name().to_string(),
        story: story(arguments)?,
        program,
    };
    let mut out = io::stdout().lock();
    let printed = match arguments.text {
        true => write!(out, "{regression}"),
        false => regression.rust_test(*target, &arguments.engine, &mut out),
    };
    match printed.and_then(|()| out.flush()).map_err(|error| Failure::output(&error)) {
        Ok(()) | Err(Failure::Pipe) => Ok(Exit::Nothing),
        Err(failure) => Err(failure),
    }
}

fn fingerprint(arguments: &Arguments, input: &[u8]) -> Result<String, Failure> {
    let Arguments { input: path, target, .. } = arguments;
    let mut examiner = Examiner::new(*target, Checks::AtCheckpoints, FileNames::default());
    let found = examiner.judge(path, input).fingerprint;
    match (found, &arguments.fingerprint) {
        (Some(found), Some(told)) if found != *told => {
            let what = format_args!("what is found in it is '{found}', expected '{told}'");
            Err(Failure::at(path, what))
        }
        (Some(found), _) => Ok(found),
        (None, Some(told)) if told.lines().count() == 1 && told.contains(": ") => Ok(told.clone()),
        (None, Some(told)) => {
            let expected = "expected one line, such as 'model: kind, normal → zero-plain'";
            Err(Failure::Told(format!("--fingerprint: '{told}', {expected}")))
        }
        (None, None) => Err(input::nothing_found(path, *target)),
    }
}

/// The story as it is printed, line by line.
fn story(arguments: &Arguments) -> Result<String, Failure> {
    let lines = arguments.story.lines().map(|line| line.replace(char::is_control, " "));
    let story = lines.collect::<Vec<_>>().join("\n");
    match story.trim().is_empty() {
        true => Err(Failure::Told("--story: is empty, expected what was wrong".to_string())),
        false => Ok(story),
    }
}
