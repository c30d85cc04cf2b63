//! `minimize`: an input becomes as small and simple as it can be and still show the same bug.

mod isolated;
mod predicate;

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use qcowfuzz::harness::Checks;
use qcowfuzz::images::FileNames;
use qcowfuzz::minimizer::{self, Minimized, Progress, Settings};
use qcowfuzz::panics::PanicNotes;
use qcowfuzz::vm::Program;

use super::examine::Examiner;
use super::files;
use super::print::print;
use super::runner::{Runner, Target};
use super::{Exit, Failure, Outcome};

use isolated::Isolated;
use predicate::Predicate;

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
    #[arg(long, value_enum, default_value_t)]
    target: Target,
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

/// Oracles that ask where the checksum of an input says: what is found depends on more than what it does.
const DRAWN: [&str; 4] = ["window: ", "io: ", "snapshots: ", "hostile: "];
/// How many other checksums are tried for each candidate then.
const REROLLS: u16 = 12;

/// Minimizes an input.
pub fn run(arguments: &Arguments) -> Outcome {
    let Arguments { input, output, target, .. } = arguments;
    target.must_run_programs("minimize")?;
    let existing = files::not_the_input(output, input, arguments.force)?;
    let bytes = files::read_input(input)?;
    let _silence = PanicNotes::take_over();
    let mut judge = Judge::new(arguments, &bytes)?;
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
    let found = judge.what();
    let minimized = minimizer::minimize(
        &bytes,
        settings,
        &mut |candidate| judge.keeps(candidate),
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
    if let Some(failure) = judge.failure() {
        return Err(failure);
    }
    files::write(output, existing, &minimized.input)?;
    let seconds = start.elapsed().as_secs_f64();
    let summary = Summary::new(arguments, found, &bytes, &minimized, seconds);
    print(&summary, arguments.json, |summary, out| summary.lines(out))?;
    Ok(Exit::Nothing)
}

fn spinner() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}");
    ProgressBar::new_spinner()
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}

fn line(progress: &Progress) -> String {
    let Progress { reducer, tries, kept, operations } = progress;
    format!("{operations} operations · {tries} tried, {kept} kept · {reducer}")
}

/// Who says whether a candidate shows the bug.
enum Judge {
    /// The fingerprint is the same.
    Fingerprint { runner: Box<Runner<()>>, fingerprint: String },
    /// It is not the same twice.
    Twice { examiner: Box<Examiner>, fingerprint: String },
    /// A process of its own comes to the same end: the bug is that there is none.
    Process(Isolated),
    /// A command ends in the same way.
    Command(Predicate),
}

impl Judge {
    fn new(arguments: &Arguments, input: &[u8]) -> Result<Self, Failure> {
        let Arguments { input: path, target, predicate, as_image, .. } = arguments;
        if let Some(command) = predicate {
            return Ok(Self::Command(Predicate::new(command, *target, *as_image, path, input)?));
        }
        let timeout = Duration::from_secs(arguments.timeout);
        if let Some(isolated) = Isolated::new(input, *target, timeout)? {
            return Ok(Self::Process(isolated));
        }
        let names = FileNames::default();
        let mut examiner = Box::new(Examiner::new(*target, Checks::AtCheckpoints, names.clone()));
        let account = examiner.judge(path, input);
        match account.fingerprint {
            Some(fingerprint) if account.steady => {
                let runner = Box::new(Runner::new(*target, names, &()));
                Ok(Self::Fingerprint { runner, fingerprint })
            }
            Some(fingerprint) => Ok(Self::Twice { examiner, fingerprint }),
            None => Err(files::nothing_found(path, *target)),
        }
    }

    fn keeps(&mut self, candidate: &[u8]) -> bool {
        match self {
            Self::Fingerprint { runner, fingerprint } => {
                let finding = runner.run_guarded(candidate, Checks::AtCheckpoints).finding();
                finding.is_some_and(|(found, _)| found == *fingerprint)
            }
            Self::Twice { examiner, fingerprint } => {
                let found = examiner.judge(Path::new("candidate"), candidate).fingerprint;
                found.as_ref() == Some(fingerprint)
            }
            Self::Process(isolated) => isolated.keeps(candidate),
            Self::Command(predicate) => predicate.keeps(candidate),
        }
    }

    /// What was found in the input.
    fn what(&self) -> String {
        match self {
            Self::Fingerprint { fingerprint, .. } | Self::Twice { fingerprint, .. } => {
                fingerprint.clone()
            }
            Self::Process(isolated) => isolated.fingerprint.clone(),
            Self::Command(predicate) => predicate.what(),
        }
    }

    fn rerolls(&self) -> u16 {
        match self {
            Self::Fingerprint { fingerprint, .. }
                if DRAWN.iter().any(|oracle| fingerprint.starts_with(oracle)) =>
            {
                REROLLS
            }
            _ => 0,
        }
    }

    /// Whether what a candidate builds may be built in this process.
    fn runs_here(&self) -> bool {
        !matches!(self, Self::Process(_))
    }

    fn failure(self) -> Option<Failure> {
        match self {
            Self::Fingerprint { .. } | Self::Twice { .. } => None,
            Self::Process(isolated) => isolated.failure,
            Self::Command(predicate) => predicate.failure(),
        }
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
