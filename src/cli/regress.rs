//! `regress`: prints an input as a regression test.

use std::io::Write;
use std::path::PathBuf;

use crate::findings::PanicNotes;
use crate::findings::examiner::Examiner;
use crate::findings::regression::Regression;
use crate::findings::runner::showing;
use crate::harness::Checks;
use crate::harness::cases::implementation::Implementation;
use crate::images::FileNames;
use crate::programs::Program;

use super::exit::{CommandError, Exit, ExitResult};
use super::input::{self, reject_if_crashes};
use super::print::buffered_stdout;
use super::target;
use super::under_test::UnderTest;
use crate::harness::targets::TargetKind;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The test makes the input of its text, runs it, and expects no violation. The text of a program is that of \
'qcowfuzz disasm'; the text of an image file has the bytes that are not 0, in rows of 16. A test of map_extents also expects \
the extents of the reference model. The test compiles on stable Rust; it needs qcowfuzz among the \
dev-dependencies, and no libFuzzer. With --text, the command prints a regression file instead: \
'cargo test' runs every file in tests/regressions/.

The test names the fingerprint of the violation that the input shows now. If the bug is fixed already, \
pass its fingerprint with --fingerprint.

Exit codes: 0 the test was printed; 2 the input could not be read, or shows no violation.

Examples: qcowfuzz regress small >> tests/walker.rs
          qcowfuzz regress small --text --story 'The walker ...' > tests/regressions/zeros_moved.txt")]
pub struct Arguments {
    /// The minimized input; '-' for standard input
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// The fuzz target of the input
    #[arg(long, value_parser = target::parser(), default_value = target::DEFAULT)]
    target: TargetKind,
    /// Print a file for tests/regressions/ instead of Rust
    #[arg(long)]
    text: bool,
    /// The story of the bug: the fault, how it was found, and its fix
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "Story: describe the fault, how it was found, and its fix."
    )]
    story: String,
    /// The fingerprint of the bug, if the input shows no violation any more
    #[arg(long, value_name = "LINE")]
    fingerprint: Option<String>,
    /// The Rust expression that creates the engine under test
    #[arg(long, value_name = "EXPRESSION", default_value = "qcowfuzz::harness::Walker::default()")]
    engine: String,
}

/// Prints the test.
pub fn run(under_test: &UnderTest, arguments: &Arguments) -> ExitResult {
    let Arguments { input, target, .. } = arguments;
    let bytes = input::read_input(input)?;
    reject_if_crashes(input, &bytes, *target, under_test)?;
    let _silence = PanicNotes::take_over();
    let implementation = showing(&under_test.implementation, *target, &bytes);
    let regression = Regression {
        fingerprint: fingerprint(&implementation, arguments, &bytes)?,
        target: *target,
        story: story(arguments)?,
        input: match target.runs_programs() {
            true => Program::decode(&bytes).encode(),
            false => bytes,
        },
    };
    let mut out = buffered_stdout();
    let printed = match arguments.text {
        true => write!(out, "{regression}"),
        false => regression.rust_test(&arguments.engine, &mut out),
    };
    match printed.and_then(|()| out.flush()).map_err(|error| CommandError::output(&error)) {
        Ok(()) | Err(CommandError::Pipe) => Ok(Exit::Nothing),
        Err(failure) => Err(failure),
    }
}

fn fingerprint(
    implementation: &Implementation,
    arguments: &Arguments,
    input: &[u8],
) -> Result<String, CommandError> {
    let Arguments { input: path, target, .. } = arguments;
    let mut examiner =
        Examiner::new(implementation, *target, Checks::default(), FileNames::default());
    let found = examiner.judge(path, input).fingerprint;
    match (found, &arguments.fingerprint) {
        (Some(found), Some(named)) if found != *named => {
            let what = format_args!("found '{found}', expected '{named}'");
            Err(CommandError::at(path, what))
        }
        (Some(found), _) => Ok(found),
        (None, Some(named)) if named.lines().count() == 1 && named.contains(": ") => {
            Ok(named.clone())
        }
        (None, Some(named)) => {
            let expected = "expected one line, such as 'model: kind, normal → zero-plain'";
            Err(CommandError::Message(format!("--fingerprint: found '{named}', {expected}")))
        }
        (None, None) => Err(input::nothing_found(path, *target)),
    }
}

/// Returns the story as the command prints it: lines without control characters.
fn story(arguments: &Arguments) -> Result<String, CommandError> {
    let lines = arguments.story.lines().map(|line| line.replace(char::is_control, " "));
    let story = lines.collect::<Vec<_>>().join("\n");
    match story.trim().is_empty() {
        true => Err(CommandError::Message(
            "--story: is empty, expected a description of the bug".to_string(),
        )),
        false => Ok(story),
    }
}
