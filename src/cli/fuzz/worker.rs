//! A worker: one job of a campaign, in a process of its own. It tells what it does in lines of JSON, and ends
//! when its standard input does.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use qcowfuzz::disk::limits::MAX_INPUT_BYTES;
use qcowfuzz::fuzzing::corpus;
use qcowfuzz::fuzzing::embedded::state::State;
use qcowfuzz::fuzzing::embedded::{Findings, Fuzzer, Progress, Settings};
use qcowfuzz::fuzzing::feedback::Recorder;
use qcowfuzz::harness::Checks;
use qcowfuzz::images::files::FileNames;

use crate::cli::exit::{Exit, Failure, Outcome};
use crate::cli::target;
use qcowfuzz::findings::panics::PanicNotes;
use qcowfuzz::findings::runner::Runner;
use qcowfuzz::harness::targets::TargetKind;

use super::places::Places;
use super::slot::Slot;
use super::subject::Supervised;

/// A job of 'fuzz', which starts it
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[arg(long, value_parser = target::parser())]
    target: TargetKind,
    #[arg(long)]
    dir: PathBuf,
    /// Where the inputs are, if not there
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// From 0
    #[arg(long)]
    job: usize,
    #[arg(long)]
    jobs: usize,
    /// Of this job, where nothing is saved yet
    #[arg(long)]
    rng_seed: u64,
    #[arg(long)]
    max_operations: usize,
    /// Which code is run
    #[arg(long)]
    build: String,
    /// End when there were so many, those of campaigns before included
    #[arg(long)]
    until: Option<u64>,
    #[arg(long)]
    milliseconds: Option<u64>,
    /// A campaign begins: look at what has come to the corpus since the state was saved, and forget what
    /// the one before has found
    #[arg(long)]
    begins: bool,
    /// Run this input, and nothing else
    #[arg(long, value_name = "INPUT")]
    only: Option<PathBuf>,
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    /// How far it is.
    Progress(Progress, Findings),
    /// It has ended: the places of the counters that it has covered.
    End(Vec<usize>),
    /// It cannot go on.
    Failed(String),
}

/// The state is saved after so many runs: a second or two of work.
const SAVE: u64 = 10_000;
/// What others have found is looked at after so many.
const IMPORT: u64 = 2_000;
/// The clock is asked, and what happened is told, after so many.
const REPORT: u64 = 100;

/// Runs a job until its end.
pub fn run(arguments: &Arguments) -> Outcome {
    match work(arguments) {
        Ok(()) | Err(Failure::Pipe) => Ok(Exit::Nothing),
        Err(Failure::Told(line) | Failure::CheckTold(line)) => {
            tell(&Message::Failed(line))?;
            Ok(Exit::Nothing)
        }
    }
}

fn work(arguments: &Arguments) -> Result<(), Failure> {
    let start = Instant::now();
    let stop = when_input_ends();
    let _silence = PanicNotes::take_over();
    let places = Places::new(arguments.dir.clone(), arguments.corpus.clone(), arguments.target)?;
    if let Some(path) = &arguments.only {
        let input = corpus::read(path, MAX_INPUT_BYTES)?;
        Runner::new(arguments.target, FileNames::default(), &Rc::new(Recorder::new()))
            .run(&input, Checks::AtCheckpoints);
        return Ok(());
    }
    let state = places.state(arguments.job);
    let mut fuzzer = fuzzer(arguments, &places, &state)?;
    // What is saved by now holds what the corpus has.
    tell(&Message::Progress(fuzzer.progress(), fuzzer.found().clone()))?;
    let end = arguments.milliseconds.map(|limit| start + Duration::from_millis(limit));
    let told = |error: io::Error| Failure::at(&places.slot(arguments.job), error);
    let shares = arguments.jobs > 1 || arguments.corpus.is_some();
    while !stop.load(Ordering::Relaxed) {
        let runs = fuzzer.runs();
        let late = || end.is_some_and(|end| Instant::now() >= end);
        if arguments.until.is_some_and(|until| runs >= until)
            || runs.is_multiple_of(REPORT) && late()
        {
            break;
        }
        fuzzer.step()?;
        let runs = fuzzer.runs();
        let skipped = fuzzer.subject().skipped().map_err(told)?;
        if skipped || runs.is_multiple_of(SAVE) {
            fuzzer.subject().idle().map_err(told)?;
            fuzzer.save(&state, places.scratch())?;
        }
        if shares && runs.is_multiple_of(IMPORT) {
            fuzzer.import()?;
        }
        if runs.is_multiple_of(REPORT) {
            tell(&Message::Progress(fuzzer.progress(), fuzzer.found().clone()))?;
        }
    }
    fuzzer.subject().idle().map_err(told)?;
    fuzzer.save(&state, places.scratch())?;
    tell(&Message::Progress(fuzzer.progress(), fuzzer.found().clone()))?;
    tell(&Message::End(fuzzer.covered().map(|counter| counter.index()).collect()))
}

/// The campaign as it was saved, or a new one; which is saved at once, so that whatever ends this worker, the
/// next one begins with the same corpus.
fn fuzzer(
    arguments: &Arguments,
    places: &Places,
    state: &Path,
) -> Result<Fuzzer<Supervised>, Failure> {
    let slot = places.slot(arguments.job);
    let slot = Slot::open(&slot).map_err(|error| Failure::at(&slot, error))?;
    let killers = corpus::files(places.killers()?.dir())?;
    let killers: Result<BTreeSet<_>, _> =
        killers.iter().map(|path| corpus::read(path, MAX_INPUT_BYTES)).collect();
    let subject = Supervised::new(arguments.target, slot, killers?);
    let settings = Settings {
        rng_seed: arguments.rng_seed,
        limits: arguments.target.limits(),
        max_operations: arguments.max_operations,
        build: arguments.build.clone(),
    };
    let (inputs, artifacts) = (places.corpus()?, places.artifacts()?);
    let mut fuzzer = match state.exists() {
        true => {
            let mut state = State::read(state)?;
            if arguments.begins {
                state.forget_findings();
            }
            Fuzzer::resume(subject, settings, inputs, artifacts, state)?
        }
        false => Fuzzer::begin(subject, settings, inputs, artifacts)?,
    };
    if arguments.begins {
        fuzzer.import()?;
    }
    fuzzer.subject().idle().map_err(|error| Failure::at(&places.slot(arguments.job), error))?;
    fuzzer.save(state, places.scratch())?;
    Ok(fuzzer)
}

/// So long a worker may go on when it is to end: a run, or saving the state, takes less.
const GRACE: Duration = Duration::from_secs(5);

/// Becomes true when standard input ends: whoever started this process wants it to end, or has ended. If it
/// has not after a while, it is ended.
fn when_input_ends() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    // Ctrl-C reaches every process of a terminal; it is the supervisor's to answer it.
    let _ = ctrlc::set_handler(|| {});
    std::thread::spawn(move || {
        let mut byte = [0];
        while matches!(io::stdin().lock().read(&mut byte), Ok(1..)) {}
        flag.store(true, Ordering::Relaxed);
        std::thread::sleep(GRACE);
        std::process::exit(1);
    });
    ended
}

fn tell(message: &Message) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let told = serde_json::to_writer(&mut out, message).map_err(io::Error::from);
    told.and_then(|()| writeln!(out))
        .and_then(|()| out.flush())
        .map_err(|error| Failure::output(&error))
}
