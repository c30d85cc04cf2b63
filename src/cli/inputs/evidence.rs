//! `bundle`, `report` and `regress`: write the evidence of an input that shows a bug: an archive for a bug report, a
//! page for a browser, a regression test.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::inputs::{self, reject_if_crashes};
use crate::cli::options;
use crate::cli::output::{self, CommandError, Exit, ExitResult, print_with, say};
use crate::cli::under_test::UnderTest;
use crate::findings::PanicNotes;
use crate::findings::regression::Regression;
use crate::findings::report::examiner::Examiner;
use crate::findings::report::qemu::QemuResult;
use crate::findings::report::{Verdict, bundle, page, script};
use crate::findings::runner::showing;
use crate::harness::Checks;
use crate::harness::cases::implementation::{Expression, Implementation};
use crate::harness::targets::TargetKind;
use crate::images::FileNames;
use crate::processes::{self, Executable, TemporaryFolder};
use crate::programs::Program;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The archive has one folder with the input, the program as text, the output of 'qcowfuzz replay' as text \
and as JSON, the image that the program builds and the files that it names, the map of the disk \
according to the reference model, the walker and qemu-img, the versions of the tools, and reproduce.sh, \
which reproduces the bug with the same options. If QEMU was judged, script/show.sh shows the bug with qemu-io \
and qemu-img alone. The command runs reproduce.sh first, and writes no archive if \
that shows another result. The same input gives the same archive, except for the versions.

Exit codes: 0 the archive was written; 2 INPUT shows no violation, or a file could not be read or \
written.

Example: qcowfuzz bundle small -o zeros-moved.tar")]
pub struct BundleArguments {
    /// The input that shows the bug; '-' for standard input
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// Write the archive to this file
    #[arg(short, value_name = "F.tar")]
    output: PathBuf,
    /// The fuzz target of the input
    #[arg(long, value_parser = options::target_parser(), default_value = options::DEFAULT_TARGET)]
    target: TargetKind,
    /// Replace the output file if it exists
    #[arg(long)]
    force: bool,
}

/// Packs the input.
pub fn bundle_input(under_test: &UnderTest, arguments: &BundleArguments) -> ExitResult {
    let BundleArguments { input, output, target, force } = arguments;
    let existing = output::not_the_input(output, input, *force)?;
    let bytes = inputs::read_judged(input, *target, &under_test.implementation)?;
    let implementation = showing_alone(under_test, input, *target, &bytes)?;
    let mut examiner = examiner_of(&implementation, *target);
    let _silence = PanicNotes::take_over();
    // The report uses the name in the archive, so that it does not reveal the user's path.
    let mut report = examiner.examine(Path::new("input"), &bytes);
    report.options = under_test.options();
    if report.verdict != Verdict::Violation {
        return Err(inputs::nothing_found(input, *target));
    }
    // The folder inside the archive has the archive's name with a suffix. Without the suffix, it could have the name of
    // an input that lies beside the archive.
    let mut folder = output.file_stem().unwrap_or("bug".as_ref()).to_os_string();
    folder.push("-bundle");
    let packed = script::files(&implementation, &report, &bytes)
        .and_then(|script| bundle::archive(&report, &bytes, &script, Path::new(&folder)))
        .map_err(|error| CommandError::at(output, error))?;
    reproduce(&packed, Path::new(&folder)).map_err(|what| CommandError::at(output, what))?;
    output::save(output, existing, &packed)?;
    say(format_args!("{}: {}", output.display(), report.judgement()))?;
    Ok(Exit::Nothing)
}

/// The time on the clock in which an archive must reproduce its bug.
const REPRODUCE_LIMIT: Duration = Duration::from_secs(120);

/// Unpacks an archive, and runs its script with this executable: a report must show its bug.
fn reproduce(packed: &[u8], folder: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot be tried: {error}");
    let scratch = TemporaryFolder::on_disk().map_err(failed)?;
    tar::Archive::new(packed).unpack(scratch.path()).map_err(failed)?;
    let script = scratch.path().join(folder).join("reproduce.sh");
    let shell = Executable::new("sh", [script.into_os_string()]);
    let own = std::env::current_exe().map_err(failed)?;
    let reply = processes::run(&shell.with_variable("QCOWFUZZ", own), REPRODUCE_LIMIT);
    match reply.map_err(failed)? {
        reply if reply.is_success() => Ok(()),
        reply => Err(format!(
            "was not written: its reproduce.sh ends with {}: {}",
            reply.end.name(),
            reply.text().trim()
        )),
    }
}

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
pub struct ReportArguments {
    /// The input: a file with any content; '-' for standard input
    input: PathBuf,
    /// Write the page to this file
    #[arg(long, value_name = "F")]
    html: PathBuf,
    /// The fuzz target of the input
    #[arg(long, value_parser = options::target_parser(), default_value = options::DEFAULT_TARGET)]
    target: TargetKind,
    /// Replace the output file if it exists
    #[arg(long)]
    force: bool,
}

/// Writes the page.
pub fn report(under_test: &UnderTest, arguments: &ReportArguments) -> ExitResult {
    let ReportArguments { input, html, target, force } = arguments;
    let existing = output::not_the_input(html, input, *force)?;
    let bytes = inputs::read_input(input, *target)?;
    if bytes.is_empty() {
        return Err(CommandError::at(input, "is empty, expected an input of a fuzz target"));
    }
    let mut examiner = examiner(under_test, input, *target, &bytes)?;
    let report = {
        let _silence = PanicNotes::take_over();
        examiner.examine(input, &bytes)
    };
    let page = page::render(&report, &QemuResult::of(&report));
    output::save(html, existing, page.as_bytes())?;
    say(html.display())?;
    Ok(Exit::Nothing)
}

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
pub struct RegressArguments {
    /// The minimized input; '-' for standard input
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// The fuzz target of the input
    #[arg(long, value_parser = options::target_parser(), default_value = options::DEFAULT_TARGET)]
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
    /// The Rust expression that creates the engine under test [default: the one of this command's own engine]
    #[arg(long, value_name = "EXPRESSION")]
    engine: Option<String>,
}

/// Prints the test.
pub fn regress(under_test: &UnderTest, arguments: &RegressArguments) -> ExitResult {
    let RegressArguments { input, target, .. } = arguments;
    let bytes = inputs::read_judged(input, *target, &under_test.implementation)?;
    let mut examiner = examiner(under_test, input, *target, &bytes)?;
    let _silence = PanicNotes::take_over();
    let found = examiner.judge(input, &bytes).fingerprint;
    let regression = Regression {
        fingerprint: fingerprint(found, arguments)?,
        target: *target,
        story: story(arguments)?,
        input: match target.runs_programs() {
            true => Program::decode(&bytes).encode(),
            false => bytes,
        },
    };
    let expression = expression(under_test, arguments)?;
    print_with(|out| match arguments.text {
        true => write!(out, "{regression}"),
        false => regression.rust_test(&expression, out),
    })?;
    Ok(Exit::Nothing)
}

/// Returns the expression that creates the implementation which was judged.
fn expression(
    under_test: &UnderTest,
    arguments: &RegressArguments,
) -> Result<Expression, CommandError> {
    let known = under_test.implementation.expression().cloned();
    let named = arguments.engine.clone().map(|engine| Expression::Engine(engine.into()));
    named.or(known).ok_or_else(|| {
        let expected = "expected the Rust expression that creates the engine under test";
        CommandError::Message(format!("--engine: is missing, {expected}"))
    })
}

/// Returns an examiner of an input that was read from `path`. Rejects one that ends its process.
fn examiner(
    under_test: &UnderTest,
    path: &Path,
    target: TargetKind,
    input: &[u8],
) -> Result<Examiner, CommandError> {
    Ok(examiner_of(&showing_alone(under_test, path, target, input)?, target))
}

fn examiner_of(implementation: &Implementation, target: TargetKind) -> Examiner {
    Examiner::new(implementation, target, Checks::default(), FileNames::default())
}

/// Returns the implementation with those known findings under which an input shows its finding. Rejects an input that
/// ends its process.
fn showing_alone(
    under_test: &UnderTest,
    path: &Path,
    target: TargetKind,
    input: &[u8],
) -> Result<Implementation, CommandError> {
    reject_if_crashes(path, input, target, under_test)?;
    let _silence = PanicNotes::take_over();
    Ok(showing(&under_test.implementation, target, input))
}

/// Returns the fingerprint of the regression: the one that was found, or else the one that the user names.
fn fingerprint(
    found: Option<String>,
    arguments: &RegressArguments,
) -> Result<String, CommandError> {
    let RegressArguments { input: path, target, .. } = arguments;
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
        (None, None) => Err(inputs::nothing_found(path, *target)),
    }
}

/// Returns the story as the command prints it: lines without control characters.
fn story(arguments: &RegressArguments) -> Result<String, CommandError> {
    let lines = arguments.story.lines().map(|line| line.replace(char::is_control, " "));
    let story = lines.collect::<Vec<_>>().join("\n");
    match story.trim().is_empty() {
        true => Err(CommandError::Message(
            "--story: is empty, expected a description of the bug".to_string(),
        )),
        false => Ok(story),
    }
}
