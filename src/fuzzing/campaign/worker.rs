//! A worker: one job of a campaign, in a process of its own. It reports in lines of JSON on standard output, and ends
//! when its standard input does.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::base::error::Error;
use crate::base::files;
use crate::base::limits::MAX_INPUT_BYTES;
use crate::findings::isolation::Messages;
use crate::findings::panics::PanicNotes;
use crate::fuzzing::embedded::state::CampaignState;
use crate::fuzzing::embedded::{FuzzProgress, FuzzSettings, Fuzzer, SavedFindings};
use crate::fuzzing::feedback::Counter;
use crate::harness::Checks;
use crate::harness::cases::implementation::Implementation;
use crate::harness::engine::failure;
use crate::harness::targets::TargetKind;
use crate::processes::RunCounter;

use super::exhaustive::{ExhaustiveSearch, Judged, SearchShare};
use super::plan::Places;
use super::run_times::RunTimes;
use super::subject::{Slot, Supervised};

/// The job of a worker, as its command line has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerJob {
    /// The target.
    pub target: TargetKind,
    /// The folder of the campaign: see [`Places`].
    pub dir: OsString,
    /// The folder of inputs that campaigns share, if there is one.
    pub shared: Option<OsString>,
    /// The number of the job, from 0.
    pub number: usize,
    /// The number of jobs.
    pub jobs: usize,
    /// The seed of this job, if no state is saved yet.
    pub rng_seed: u64,
    /// The highest number of operations of a program.
    pub max_operations: usize,
    /// The name of the code that is run: see [`build_name`](super::build_name).
    pub build: String,
    /// The number of runs, with those of earlier campaigns, after which the job ends.
    pub until: Option<u64>,
    /// The time after which the job ends.
    pub limit: Option<Duration>,
    /// The job runs generated programs, and no mutations of the corpus.
    pub generated: bool,
    /// The job is a part of an exhaustive search through programs of up to this number of requests.
    pub exhaustive: Option<usize>,
    /// The times at which the images of a program are verified.
    pub checks: Checks,
    /// A campaign begins: the worker reads the inputs that have come to the corpus since the state was saved, and
    /// forgets the findings of the campaign before.
    pub begins: bool,
}

/// A message of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// The progress and the findings.
    Progress(FuzzProgress, SavedFindings),
    /// The programs and runs that an exhaustive search has judged so far.
    Judged(Judged),
    /// The worker has ended. The numbers are the indices of the counters that it covers; then the times of its runs.
    End(Vec<usize>, RunTimes),
    /// The worker cannot go on.
    Failed(String),
}

/// Why a worker ended early.
enum WorkerStop {
    /// A file could not be read or written.
    Error(Error),
    /// The supervisor no longer reads the worker's output.
    Output(io::Error),
    /// The time of a search is over.
    Over,
}

impl From<Error> for WorkerStop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The number of runs between two saves of the state: a second or two of work.
const SAVE: u64 = 10_000;
/// The number of runs between two imports of the inputs that other jobs have added.
const IMPORT: u64 = 2_000;
/// The number of runs between two reports.
const REPORT: u64 = 100;

/// Runs a job until its end, and reports to the supervisor on standard output. Counts its runs with `runs`.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(implementation: &Implementation, job: &WorkerJob, runs: RunCounter) -> io::Result<()> {
    let messages = Messages::take_stdout()?;
    match failure::catch(|| work(implementation, job, runs, &messages)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(WorkerStop::Output(error))) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Ok(Err(WorkerStop::Output(error))) => Err(error),
        Ok(Err(WorkerStop::Over)) => Ok(()),
        Ok(Err(WorkerStop::Error(error))) => messages.send(&Message::Failed(error.to_string())),
        Err(line) => messages.send(&Message::Failed(line)),
    }
}

fn work(
    implementation: &Implementation,
    job: &WorkerJob,
    counter: RunCounter,
    messages: &Messages,
) -> Result<(), WorkerStop> {
    let start = Instant::now();
    let stop = when_input_ends();
    let _silence = PanicNotes::take_over();
    let shared = job.shared.clone().map(PathBuf::from);
    let places = Places::new(job.dir.clone().into(), shared, job.target, job.exhaustive.is_some())?;
    let state = places.state(job.number);
    let failed = |error: io::Error| Error::file(places.slot(job.number), error);
    let end = job.limit.map(|limit| start + limit);
    // An engine may need seconds for a run, so the clock is read before each.
    let is_over = || stop.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end);
    let subject = supervised(implementation, job, &places, counter)?;
    if let Some(requests) = job.exhaustive {
        let share =
            SearchShare { requests, job: job.number, jobs: job.jobs, build: job.build.clone() };
        let claims = job.target.claims_of(&implementation.facts());
        let mut search =
            ExhaustiveSearch::open(subject, places.artifacts()?, &claims, (share, &state))?;
        return search_all(&mut search, (&state, places.scratch()), &is_over, messages);
    }
    let mut fuzzer = opened(implementation, job, &places, &state, subject)?;
    if job.begins || !state.exists() {
        fuzzer.fill(&is_over)?;
    }
    // The next worker begins with the same corpus even if this one is killed.
    fuzzer.subject().idle().map_err(failed)?;
    fuzzer.save(&state, places.scratch())?;
    // The state that is saved by now has the inputs of the corpus.
    report(messages, &Message::Progress(fuzzer.progress(), fuzzer.found().clone()))?;
    let shares = job.jobs > 1 || job.shared.is_some();
    while !is_over() && job.until.is_none_or(|until| fuzzer.runs() < until) {
        match job.generated {
            true => fuzzer.step_generated()?,
            false => fuzzer.step()?,
        }
        let runs = fuzzer.runs();
        let skipped = fuzzer.subject().skipped().map_err(failed)?;
        if skipped || runs.is_multiple_of(SAVE) {
            fuzzer.subject().idle().map_err(failed)?;
            fuzzer.save(&state, places.scratch())?;
        }
        if shares && runs.is_multiple_of(IMPORT) {
            fuzzer.import()?;
        }
        if runs.is_multiple_of(REPORT) {
            report(messages, &Message::Progress(fuzzer.progress(), fuzzer.found().clone()))?;
        }
    }
    fuzzer.subject().idle().map_err(failed)?;
    fuzzer.save(&state, places.scratch())?;
    report(messages, &Message::Progress(fuzzer.progress(), fuzzer.found().clone()))?;
    let covered = fuzzer.covered().filter_map(Counter::index).collect();
    report(messages, &Message::End(covered, fuzzer.subject().times().clone()))
}

/// Does a share of an exhaustive search.
fn search_all(
    search: &mut ExhaustiveSearch,
    (state, scratch): (&Path, &Path),
    is_over: &dyn Fn() -> bool,
    messages: &Messages,
) -> Result<(), WorkerStop> {
    let progress = |search: &ExhaustiveSearch| {
        let progress = FuzzProgress { runs: search.runs(), ..FuzzProgress::default() };
        report(messages, &Message::Progress(progress, search.found().clone()))?;
        report(messages, &Message::Judged(search.judged()))
    };
    progress(search)?;
    let searched = search.run((state, scratch), &mut |search| {
        search.subject().skipped().map_err(|error| Error::file(state, error))?;
        if search.runs().is_multiple_of(REPORT) {
            progress(search)?;
        }
        if is_over() { Err(WorkerStop::Over) } else { Ok(()) }
    });
    match searched {
        Err(WorkerStop::Over) | Ok(()) => {}
        Err(stop) => return Err(stop),
    }
    search.subject().idle().map_err(|error| Error::file(state, error))?;
    progress(search)?;
    let times = search.subject().times().clone();
    report(messages, &Message::End(Vec::new(), times))
}

/// Returns the target with the implementation under test.
fn supervised(
    implementation: &Implementation,
    job: &WorkerJob,
    places: &Places,
    counter: RunCounter,
) -> Result<Supervised, Error> {
    let slot = places.slot(job.number);
    let open = Slot::open(&slot).map_err(|error| Error::file(&slot, error))?;
    let killers = files::list(places.killers()?.dir())?;
    let killers: Result<BTreeSet<_>, _> =
        killers.iter().map(|path| files::read(path, MAX_INPUT_BYTES)).collect();
    Ok(Supervised::new(implementation, job.target, open, killers?, counter, job.checks))
}

/// Returns the campaign from its saved state, or one without inputs.
fn opened(
    implementation: &Implementation,
    job: &WorkerJob,
    places: &Places,
    state: &Path,
    subject: Supervised,
) -> Result<Fuzzer<Supervised>, Error> {
    let settings = FuzzSettings {
        rng_seed: job.rng_seed,
        inputs: job.target.definition().inputs,
        limits: job.target.limits(),
        claims: job.target.claims_of(&implementation.facts()),
        max_operations: job.max_operations,
        build: job.build.clone(),
    };
    let (inputs, artifacts) = (places.corpus()?, places.artifacts()?);
    match state.exists() {
        true => {
            let mut state = CampaignState::read(state)?;
            if job.begins {
                state.forget_findings();
            }
            Fuzzer::resume(subject, settings, inputs, artifacts, state)
        }
        false => Ok(Fuzzer::without_inputs(subject, settings, inputs, artifacts)),
    }
}

/// The time that a worker has to end. A run, or saving the state, takes less.
const GRACE: Duration = Duration::from_secs(5);

/// Returns a flag that becomes true when standard input ends: the supervisor wants this process to end, or has ended. A
/// while later, the process exits.
fn when_input_ends() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    std::thread::spawn(move || {
        let mut byte = [0];
        while matches!(io::stdin().lock().read(&mut byte), Ok(1..)) {}
        flag.store(true, Ordering::Relaxed);
        std::thread::sleep(GRACE);
        std::process::exit(1);
    });
    ended
}

fn report(messages: &Messages, message: &Message) -> Result<(), WorkerStop> {
    messages.send(message).map_err(WorkerStop::Output)
}
