//! `minimize`: makes an input as small and simple as possible while it shows the same bug.

use std::borrow::Cow;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde::Serialize;

use crate::cli::fuzz::stop_on_ctrl_c;
use crate::cli::inputs;
use crate::cli::options::{self, MemoryArgument};
use crate::cli::output::{self, CommandError, Exit, ExitResult, print, spinner};
use crate::cli::under_test::UnderTest;
use crate::findings::PanicNotes;
use crate::findings::file_text::FileText;
use crate::findings::isolation::Isolation;
use crate::findings::minimizer::judges::{Judge, JudgeError, Passed};
use crate::findings::minimizer::{self, MinimizeProgress, MinimizeSettings, Minimized};
use crate::harness::targets::TargetKind;
use crate::programs::Program;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command removes and simplifies operations, and shrinks their operands and the geometry, until no \
simpler program has the same fingerprint. It writes the canonical form of the result. An image file of \
raw_image is cut, ranges of it are removed and zeroed, and bytes become smaller; so are the choices of recipes. Ctrl-C ends the \
search and writes the simplest input so far. INPUT itself is never changed. Candidates run in \
another process, which a crash or a hang may end. Known findings are set aside, unless INPUT \
shows nothing else: then the command shrinks the first of them.

With --predicate, CMD decides whether a candidate shows the bug, for code that runs in other processes. \
The shell runs CMD with the name of a candidate file as its last argument. A candidate is kept if CMD \
ends with the same exit code or signal as for INPUT. The output of CMD is discarded. With --as-image, \
CMD receives the image that the candidate builds, as 'qcowfuzz replay --dump-image' writes it. If CMD \
may hang, begin it with 'timeout 10'.

Exit codes: 0 the result was written; 2 INPUT shows no violation, a file could not be read or \
written, or CMD could not be run.

Examples: qcowfuzz minimize artifacts/map_extents/crash-1f0c -o small
          qcowfuzz minimize crash -o small --as-image --predicate 'timeout 10 my-reader --verify'")]
pub struct Arguments {
    /// The input that shows the bug; '-' for standard input
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// Write the result to this file
    #[arg(short, value_name = "F")]
    output: PathBuf,
    /// The fuzz target of the input
    #[arg(long, value_parser = options::target_parser(), default_value = options::DEFAULT_TARGET)]
    target: TargetKind,
    /// Decide by the exit code of this command whether a candidate shows the bug
    #[arg(long, value_name = "CMD")]
    predicate: Option<String>,
    /// Pass the image that a candidate builds to the command
    #[arg(long, requires = "predicate")]
    as_image: bool,
    /// Try at most N candidates
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    tries: u64,
    /// Treat a run that uses this much CPU time as a hang
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    timeout: u64,
    #[command(flatten)]
    memory: MemoryArgument,
    /// Replace the output file if it exists
    #[arg(long)]
    force: bool,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
}

/// Minimizes an input.
pub fn run(under_test: &UnderTest, arguments: &Arguments) -> ExitResult {
    let Arguments { input, output, target, .. } = arguments;
    if arguments.as_image {
        options::reject_files(*target, "--as-image")?;
    }
    let existing = output::not_the_input(output, input, arguments.force)?;
    let facts = under_test.implementation.facts();
    let bytes = inputs::read_input(input, arguments.target)?;
    let bytes = target.judged(&facts, &bytes);
    let _silence = PanicNotes::take_over();
    let mut judge = judge(under_test, arguments, &bytes)?;
    let stopped = stop_on_ctrl_c()?;
    let start = Instant::now();
    let bar = spinner();
    let settings = MinimizeSettings {
        inputs: target.definition().inputs,
        limits: target.limits(),
        tries: arguments.tries,
        rerolls: judge.rerolls,
        runs_here: judge.runs_here,
    };
    let found = judge.found.clone();
    let minimized = minimizer::minimize(
        &bytes,
        settings,
        // The harness would judge another program than such a candidate.
        &mut |candidate| match target.judged(&facts, candidate) {
            Cow::Borrowed(candidate) => judge.shows(candidate),
            Cow::Owned(_) => Ok(false),
        },
        &mut |progress| {
            bar.set_message(line(progress, *target));
            bar.tick();
            match stopped.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        },
    );
    bar.finish_and_clear();
    let minimized = minimized.map_err(|error| failure(error, arguments))?;
    output::save(output, existing, &minimized.input)?;
    let seconds = start.elapsed().as_secs_f64();
    let summary = MinimizeSummary::new(arguments, found, &bytes, &minimized, seconds);
    print(&summary, arguments.json, |summary, out| summary.lines(out))?;
    Ok(Exit::Nothing)
}

fn line(progress: &MinimizeProgress, target: TargetKind) -> String {
    let MinimizeProgress { reducer, tries, kept, left } = progress;
    let what = if target.runs_programs() { "operations" } else { "bytes that are not 0" };
    format!("{left} {what} · {tries} tried, {kept} kept · {reducer}")
}

/// Returns the judge that the arguments name, or the judge that fits the input.
fn judge(
    under_test: &UnderTest,
    arguments: &Arguments,
    input: &[u8],
) -> Result<Judge, CommandError> {
    let target = arguments.target;
    let judge = match &arguments.predicate {
        Some(command) => {
            let passed = match (arguments.as_image, target.runs_programs()) {
                (true, _) => Passed::Image(target.limits()),
                (false, true) => Passed::Program,
                (false, false) => Passed::File,
            };
            Judge::by_command(command, passed, input)
        }
        None => {
            options::reject_reader(target, &under_test.implementation)?;
            let limits = arguments.memory.limits(arguments.timeout);
            let executable = under_test.executable()?;
            let isolation = Isolation { executable, target, limits };
            Judge::by_finding(input, isolation)
        }
    };
    judge.map_err(|error| failure(error, arguments))
}

/// Converts an error to a message that names the input or the option at fault.
fn failure(error: JudgeError, arguments: &Arguments) -> CommandError {
    let path = &arguments.input;
    match error {
        JudgeError::NothingFound => inputs::nothing_found(path, arguments.target),
        JudgeError::File(error) => error.into(),
        JudgeError::Undecided { command, end } => CommandError::Message(format!(
            "--predicate: {command}: ended with {end} for {} and also for an empty input, expected different results",
            path.display()
        )),
        JudgeError::Command { .. } => CommandError::Message(format!("--predicate: {error}")),
        JudgeError::Isolation(_) | JudgeError::Scratch(_) | JudgeError::Build(_) => {
            CommandError::Message(error.to_string())
        }
    }
}

/// The result of a minimization.
#[derive(Serialize)]
struct MinimizeSummary {
    output: String,
    /// The fingerprint of the input and of the output.
    fingerprint: String,
    bytes_before: usize,
    bytes: usize,
    #[serde(flatten)]
    left: Left,
    tries: u64,
    kept: u64,
    seconds: f64,
    /// The search ended because no simpler candidate was left.
    complete: bool,
}

/// The size and the text of the simplest input.
#[derive(Serialize)]
#[serde(untagged)]
enum Left {
    Program { operations_before: usize, operations: usize, program: String },
    File { nonzero_bytes_before: usize, nonzero_bytes: usize, file: String },
}

impl Left {
    fn new(target: TargetKind, before: &[u8], input: &[u8]) -> Self {
        if !target.runs_programs() {
            let nonzero = |file: &[u8]| file.iter().filter(|byte| **byte != 0).count();
            let (nonzero_bytes_before, nonzero_bytes) = (nonzero(before), nonzero(input));
            let file = FileText(input).to_string();
            return Self::File { nonzero_bytes_before, nonzero_bytes, file };
        }
        let program = Program::decode(input);
        Self::Program {
            operations_before: Program::decode(before).operations.len(),
            operations: program.operations.len(),
            program: program.to_string(),
        }
    }

    /// Returns the change of the size, and the text.
    fn texts(&self) -> (String, &str) {
        match self {
            Self::Program { operations_before, operations, program } => {
                (format!("{operations_before} → {operations} operations"), program)
            }
            Self::File { nonzero_bytes_before, nonzero_bytes, file } => {
                (format!("{nonzero_bytes_before} → {nonzero_bytes} bytes that are not 0"), file)
            }
        }
    }
}

impl MinimizeSummary {
    fn new(
        arguments: &Arguments,
        fingerprint: String,
        before: &[u8],
        minimized: &Minimized,
        seconds: f64,
    ) -> Self {
        let Minimized { input, tries, kept, complete } = minimized;
        Self {
            output: arguments.output.display().to_string(),
            fingerprint,
            bytes_before: before.len(),
            bytes: input.len(),
            left: Left::new(arguments.target, before, input),
            tries: *tries,
            kept: *kept,
            seconds,
            complete: *complete,
        }
    }

    fn lines(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { output, bytes_before, bytes, .. } = self;
        let (left, text) = self.left.texts();
        writeln!(out, "{}", self.fingerprint)?;
        let early = if self.complete { "" } else { ", ended early" };
        writeln!(
            out,
            "{output}: {left}, {bytes_before} → {bytes} bytes; {} tried in {:.1} s{early}",
            self.tries, self.seconds
        )?;
        write!(out, "\n{text}")
    }
}
