//! `minimize`: an input becomes as small and simple as it can be and still show the same bug.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use qcowfuzz::findings::PanicNotes;
use qcowfuzz::findings::isolation::Isolation;
use qcowfuzz::findings::judges::{Judge, JudgeError, Passed, Predicate, judge_of};
use qcowfuzz::findings::minimizer;
use qcowfuzz::findings::minimizer::{Minimized, Progress, Settings};
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::programs::Program;

use super::exit::{Exit, Failure, Outcome};
use super::input;
use super::print::{print, spinner};
use super::save;
use super::target;

/// Make an input that shows a bug as small and simple as it can be: the same fingerprint, fewer operations
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Operations are dropped, made plainer, their operands and the geometry shrunk, again and again, until \
nothing simpler has the same fingerprint. What is written is the canonical form. Ctrl-C ends it with \
the simplest so far. INPUT itself is never written to. An input that ends its \
process, or never ends, is minimized in processes of its own.

With --predicate, CMD judges instead, for code in other processes: it is run by the shell with the \
name of a file behind it, a candidate, and a candidate is kept where CMD ends as it ended with \
INPUT: the same exit code, or the same signal. What CMD prints is not shown. --as-image hands it \
the image that the candidate builds, as 'qcowfuzz replay --dump-image' writes it. Put 'timeout 10' before \
a command that may hang.

Exit codes: 0 the simplest was written; 2 nothing was found in INPUT, a file could not be read or \
written, or CMD not be run.

Examples: qcowfuzz minimize artifacts/map_extents/crash-1f0c -o small
          qcowfuzz minimize crash -o small --as-image --predicate 'timeout 10 my-reader --verify'")]
pub struct Arguments {
    /// The input, which shows a bug
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// Where the simplest input goes
    #[arg(short, value_name = "F")]
    output: PathBuf,
    /// The fuzz target that the input is for
    #[arg(long, value_parser = target::parser(), default_value = target::DEFAULT)]
    target: TargetKind,
    /// Let this command judge, by its exit code
    #[arg(long, value_name = "CMD")]
    predicate: Option<String>,
    /// Hand the command the image that a candidate builds
    #[arg(long, requires = "predicate")]
    as_image: bool,
    /// Judge at most so many candidates
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    tries: u64,
    /// A run of so many seconds is a hang, where INPUT is one
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    timeout: u64,
    /// Replace the output if it is there already
    #[arg(long)]
    force: bool,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
}

/// Minimizes an input.
pub fn run(arguments: &Arguments) -> Outcome {
    let Arguments { input, output, target, .. } = arguments;
    target::reject_files(*target, "minimize")?;
    let existing = save::not_the_input(output, input, arguments.force)?;
    let bytes = input::read_input(input)?;
    let _silence = PanicNotes::take_over();
    let mut judge = judge(arguments, &bytes)?;
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopped);
    ctrlc::set_handler(move || stop.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::Told(format!("signals: {error}")))?;
    let start = Instant::now();
    let bar = spinner();
    let settings = Settings {
        limits: target.limits(),
        tries: arguments.tries,
        rerolls: judge.rerolls(),
        runs_here: judge.runs_here(),
    };
    let found = judge.found();
    let minimized = minimizer::minimize(
        &bytes,
        settings,
        &mut |candidate| judge.shows(candidate),
        &mut |progress| {
            bar.set_message(line(progress));
            bar.tick();
            match stopped.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        },
    );
    bar.finish_and_clear();
    let minimized = minimized.map_err(|error| failure(error, arguments))?;
    save::write(output, existing, &minimized.input)?;
    let seconds = start.elapsed().as_secs_f64();
    let summary = Summary::new(arguments, found, &bytes, &minimized, seconds);
    print(&summary, arguments.json, |summary, out| summary.lines(out))?;
    Ok(Exit::Nothing)
}

fn line(progress: &Progress) -> String {
    let Progress { reducer, tries, kept, operations } = progress;
    format!("{operations} operations · {tries} tried, {kept} kept · {reducer}")
}

/// Returns the judge that the arguments ask for, or that the input needs.
fn judge(arguments: &Arguments, input: &[u8]) -> Result<Box<dyn Judge>, Failure> {
    let target = arguments.target;
    let judge: Result<Box<dyn Judge>, _> = match &arguments.predicate {
        Some(command) => {
            let passed = match arguments.as_image {
                true => Passed::Image(target.limits()),
                false => Passed::Candidate,
            };
            Predicate::new(command, passed, input).map(|judge| Box::new(judge) as _)
        }
        None => {
            let timeout = Duration::from_secs(arguments.timeout);
            let executable = input::this_executable()?;
            judge_of(input, &Isolation { executable, target, timeout })
        }
    };
    judge.map_err(|error| failure(error, arguments))
}

/// Names the input or the option that an error is about.
fn failure(error: JudgeError, arguments: &Arguments) -> Failure {
    let path = &arguments.input;
    match error {
        JudgeError::NothingFound => input::nothing_found(path, arguments.target),
        JudgeError::File(error) => error.into(),
        JudgeError::Undecided { command, status } => Failure::Told(format!(
            "--predicate: {command}: ended with {status} both with {} and with an empty program, expected something else",
            path.display()
        )),
        JudgeError::Command { .. } => Failure::Told(format!("--predicate: {error}")),
        JudgeError::Isolation(_) | JudgeError::Build(_) => Failure::Told(error.to_string()),
    }
}

/// What it came to.
#[derive(Serialize)]
struct Summary {
    output: String,
    /// What was found, in the input and in the output.
    fingerprint: String,
    bytes_before: usize,
    bytes: usize,
    operations_before: usize,
    operations: usize,
    tries: u64,
    kept: u64,
    seconds: f64,
    /// Nothing simpler was left to try.
    complete: bool,
    program: String,
}

impl Summary {
    fn new(
        arguments: &Arguments,
        fingerprint: String,
        before: &[u8],
        minimized: &Minimized,
        seconds: f64,
    ) -> Self {
        let Minimized { input, tries, kept, complete } = minimized;
        let program = Program::decode(input);
        Self {
            output: arguments.output.display().to_string(),
            fingerprint,
            bytes_before: before.len(),
            bytes: input.len(),
            operations_before: Program::decode(before).operations.len(),
            operations: program.operations.len(),
            tries: *tries,
            kept: *kept,
            seconds,
            complete: *complete,
            program: program.to_string(),
        }
    }

    fn lines(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { output, bytes_before, bytes, operations_before, operations, .. } = self;
        writeln!(out, "{}", self.fingerprint)?;
        let early = if self.complete { "" } else { ", ended early" };
        writeln!(
            out,
            "{output}: {operations_before} → {operations} operations, {bytes_before} → {bytes} bytes; {} tried in {:.1} s{early}",
            self.tries, self.seconds
        )?;
        write!(out, "\n{}", self.program)
    }
}
