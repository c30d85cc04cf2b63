//! `regress`: an input becomes a test.

use std::io::{self, Write};
use std::path::PathBuf;

use qcowfuzz::disk::extent::Extent;
use qcowfuzz::findings::explain::explain;
use qcowfuzz::findings::panics::{PanicNotes, caught};
use qcowfuzz::findings::regression::Regression;
use qcowfuzz::harness::Checks;
use qcowfuzz::harness::target::Expectation;
use qcowfuzz::images::files::FileNames;
use qcowfuzz::images::limits::Limits;
use qcowfuzz::programs::Program;

use super::examine::Examiner;
use super::exit::{Exit, Failure, Outcome};
use super::files;
use super::once::survived;
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
    let bytes = files::read_input(input)?;
    survived(input, &bytes, *target)?;
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
        false => test(&regression, arguments, &mut out),
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
        (None, None) => Err(files::nothing_found(path, *target)),
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

/// Writes the test as Rust.
fn test(regression: &Regression, arguments: &Arguments, out: &mut impl Write) -> io::Result<()> {
    let Regression { fingerprint, story, program, .. } = regression;
    writeln!(out, "/// {fingerprint}\n///")?;
    story.lines().try_for_each(|line| writeln!(out, "/// {line}"))?;
    writeln!(out, "#[test]\nfn {}() {{", regression.name())?;
    writeln!(out, "    use qcowfuzz::harness::{{Checks, target::Target}};")?;
    writeln!(out, "    let text = \"\\")?;
    for line in program.to_string().lines() {
        writeln!(out, "        {line}\\n\\")?;
    }
    writeln!(out, "    \";")?;
    writeln!(out, "    let input = qcowfuzz::programs::text::assemble(text).unwrap().encode();")?;
    let definition = arguments.target.definition();
    let target = definition.constructor.replace("{engine}", &arguments.engine);
    writeln!(out, "    let mut target = qcowfuzz::{target};")?;
    writeln!(
        out,
        "    let found = Target::run(&mut target, &input, Checks::AtCheckpoints).err();"
    )?;
    writeln!(out, "    let found = found.map(|failure| failure.violation.fingerprint());")?;
    writeln!(out, "    assert_eq!(found, None);")?;
    if definition.expectation == Expectation::Extents {
        expected(program, definition.limits, out)?;
    }
    writeln!(out, "}}")
}

/// Extents up to this number are spelled out.
const MAX_SPELLED_EXTENTS: usize = 32;

/// Writes what the reference model expects.
fn expected(program: &Program, limits: Limits, out: &mut impl Write) -> io::Result<()> {
    let names = FileNames::default();
    // What the build panics over has no extents to be expected.
    let explained = caught(|| explain(&program.encode(), limits, usize::MAX, &names));
    let Ok(explained) = explained else { return Ok(()) };
    if explained.expected.is_empty() || explained.expected.len() > MAX_SPELLED_EXTENTS {
        return Ok(());
    }
    writeln!(out, "    // Guest offset, length, status, host offset.")?;
    writeln!(out, "    let extents = [")?;
    for Extent { start, length_bytes, mapping } in &explained.expected {
        let offset = mapping.offset.map(|offset| offset.get());
        writeln!(out, "        ({start}, {length_bytes}, {:?}, {offset:?}),", mapping.kind())?;
    }
    writeln!(out, "    ];")?;
    writeln!(out, "    let actual: Vec<_> = target.actual().iter().map(|it| {{")?;
    writeln!(out, "        let host = it.mapping.offset.map(|offset| offset.get());")?;
    writeln!(out, "        let kind = it.mapping.kind();")?;
    writeln!(out, "        (it.start.get(), it.length_bytes, kind, host)")?;
    writeln!(out, "    }}).collect();")?;
    writeln!(out, "    assert_eq!(actual, extents);")
}
