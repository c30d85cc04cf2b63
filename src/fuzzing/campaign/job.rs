//! A job of a campaign, and the worker process that does it now.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use crate::findings::isolation::{IsolatedRun, IsolationError, RUN_ERROR_BYTES};
use crate::fuzzing::embedded::state::CampaignState;
use crate::fuzzing::embedded::{FuzzProgress, SavedFindings};
use crate::processes::{Process, ProcessEnd};

use super::exhaustive::Judged;
use super::plan::{CampaignError, CampaignPlan};
use super::run_times::RunTimes;
use super::subject::Running;
use super::worker::{Message, WorkerJob};

/// The number of a job, and a message of its worker; after the last message, the last text on its standard error.
pub(super) type Heard = (usize, Result<Message, String>);

/// A job.
#[derive(Debug)]
pub(super) struct Job {
    number: usize,
    /// The worker. It ends when its standard input is closed.
    worker: Process,
    /// The number of runs of earlier campaigns.
    before: u64,
    /// The number of runs, with those of earlier campaigns, after which the job ends.
    until: Option<u64>,
    /// The progress.
    pub(super) progress: FuzzProgress,
    /// The programs and runs that an exhaustive search has judged.
    pub(super) judged: Judged,
    /// The findings.
    pub(super) found: SavedFindings,
    /// The indices of the counters that it covers. The worker reports them at its end.
    pub(super) covered: Vec<usize>,
    /// The times of the runs of the last worker, which reports them at its end.
    pub(super) times: RunTimes,
    /// The job has read the corpus and saved its state.
    begun: bool,
    /// The reason why the job could not go on.
    pub(super) failure: Option<String>,
    /// The job has ended, and no worker goes on with it.
    pub(super) done: bool,
    /// The number of the run, and the time at which the supervisor first saw it.
    run: (u64, Instant),
    hangs: bool,
    /// The number of workers that ended one after the other although their input ends no process, and the progress
    /// then.
    lost: (u32, u64),
    /// The next worker starts at this time: the system killed the last one.
    restart_at: Option<Instant>,
}

/// The reason why a worker ended.
pub(super) enum End {
    /// Its work was done.
    Done,
    /// The input that it ran.
    Killer {
        /// The input.
        input: Vec<u8>,
        /// The end of its process.
        end: ProcessEnd,
        /// Another process that ran nothing else ended too.
        alone: bool,
    },
    /// The system killed it: the next worker has to wait.
    Killed,
    /// Another reason.
    Other,
}

/// The number of workers of a job that may end without progress although their input ends no process.
const MAX_LOST: u32 = 3;
/// The number of workers of a job that the system may kill without progress.
const MAX_KILLED: u32 = 8;
/// The time before the next worker starts after the system has killed one. It doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

impl Job {
    /// Starts a job from its saved state.
    pub(super) fn start(
        number: usize,
        plan: &CampaignPlan,
        heard: &Sender<Heard>,
    ) -> Result<Self, CampaignError> {
        let saved = plan.places.state(number);
        // An exhaustive search ends after all its programs, with or without those of earlier searches.
        let before = match saved.exists() && plan.exhaustive.is_none() {
            true => CampaignState::read(&saved)?.runs(),
            false => 0,
        };
        let share = |runs: u64| {
            let jobs = plan.jobs as u64;
            runs / jobs + u64::from((number as u64) < runs % jobs)
        };
        let until = plan.runs.map(|runs| before.saturating_add(share(runs)));
        let worker = worker(number, until, true, plan, heard)?;
        Ok(Self {
            number,
            worker,
            before,
            until,
            progress: FuzzProgress { runs: before, ..FuzzProgress::default() },
            judged: Judged::default(),
            found: SavedFindings::default(),
            covered: Vec::new(),
            times: RunTimes::default(),
            begun: false,
            failure: None,
            done: false,
            run: (0, Instant::now()),
            hangs: false,
            lost: (0, before),
            restart_at: None,
        })
    }

    /// Starts another worker from the state that the last one saved.
    pub(super) fn restart(
        &mut self,
        plan: &CampaignPlan,
        heard: &Sender<Heard>,
    ) -> Result<(), CampaignError> {
        let begins = !self.begun;
        self.worker = worker(self.number, self.until, begins, plan, heard)?;
        self.run = (0, Instant::now());
        self.restart_at = None;
        Ok(())
    }

    /// Makes the worker end after its current run.
    pub(super) fn stop(&mut self) {
        self.worker.close_input();
        self.done |= self.restart_at.is_some();
    }

    /// Reports whether the pause after a killed worker is over.
    pub(super) fn waits_no_longer(&self) -> bool {
        self.restart_at.is_some_and(|time| time <= Instant::now())
    }

    /// Returns the number of runs in this campaign.
    pub(super) fn runs(&self) -> u64 {
        self.progress.runs.saturating_sub(self.before)
    }

    /// Returns the number of runs of the corpus, while the worker reads it.
    pub(super) fn runs_of_corpus(&self) -> Option<u64> {
        (!self.begun).then_some(self.run.0)
    }

    /// Takes a message of the worker.
    pub(super) fn take(&mut self, message: Message) {
        match message {
            Message::Progress(progress, found) => {
                (self.progress, self.found, self.begun) = (progress, found, true);
            }
            Message::Judged(judged) => self.judged = judged,
            Message::End(covered, times) => (self.covered, self.times) = (covered, times),
            Message::Failed(line) => self.failure = Some(line),
        }
    }

    /// Finds out why the worker has ended, after its last message. It printed `stderr` last.
    pub(super) fn ended(
        &mut self,
        plan: &CampaignPlan,
        stderr: &str,
    ) -> Result<End, CampaignError> {
        let found = self.worker.wait().map_err(CampaignError::Worker)?;
        if found == ProcessEnd::Exit(0) {
            self.done = true;
            return Ok(End::Done);
        }
        let end = match std::mem::take(&mut self.hangs) {
            true => Some(ProcessEnd::Timeout),
            false => found.within_limits(stderr),
        };
        let times = self.count_lost();
        let Some(end) = end else { return self.killed(times) };
        let input = Running::read(&plan.places.slot(self.number)).input;
        let alone = input.as_ref().map(|input| plan.isolated_run(input)).transpose();
        match (input, alone) {
            // It ends a process that runs nothing else.
            (Some(input), Ok(Some(IsolatedRun::Ended(_)))) => {
                Ok(End::Killer { input, end, alone: true })
            }
            (Some(input), Ok(_)) if times >= MAX_LOST => {
                Ok(End::Killer { input, end, alone: false })
            }
            // The system has killed that process: no input is to blame.
            (_, Err(IsolationError::Killed)) => Ok(End::Other),
            (_, Err(error)) => Err(error.into()),
            (None, _) if times >= MAX_LOST => {
                Err(CampaignError::Lost { job: self.number, times, end: found })
            }
            _ => Ok(End::Other),
        }
    }

    /// Counts a worker that ended. Returns the number of those that ended one after the other without progress.
    fn count_lost(&mut self) -> u32 {
        let (times, runs) = self.lost;
        let again = times > 0 && runs == self.progress.runs;
        self.lost = (if again { times + 1 } else { 1 }, self.progress.runs);
        self.lost.0
    }

    /// Waits after the system has killed a worker, for the `times`th time without progress. No input is to blame.
    fn killed(&mut self, times: u32) -> Result<End, CampaignError> {
        if times >= MAX_KILLED {
            return Err(CampaignError::Killed { job: self.number, times });
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << times.min(MAX_KILLED));
        self.restart_at = Instant::now().checked_add(pause);
        Ok(End::Killed)
    }

    /// Ends the worker if its run takes too long on the clock: it waits for something, or the system has stopped it.
    /// The worker itself watches its CPU time.
    pub(super) fn end_hang(&mut self, plan: &CampaignPlan) {
        if self.restart_at.is_some() {
            return;
        }
        let running = Running::read(&plan.places.slot(self.number));
        if running.input.is_none() || running.number != self.run.0 {
            self.run = (running.number, Instant::now());
        } else if self.run.1.elapsed() > plan.limits.wall_clock() && !self.hangs {
            self.hangs = true;
            // If the worker has ended by itself, that will be the next message.
            let _ = self.worker.stop();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // It fails if the system cannot wait for the worker.
        let _ = self.worker.stop();
    }
}

/// Starts a worker, and a thread that passes its messages on.
fn worker(
    job: usize,
    until: Option<u64>,
    begins: bool,
    plan: &CampaignPlan,
    heard: &Sender<Heard>,
) -> Result<Process, CampaignError> {
    let worker_job = WorkerJob {
        target: plan.target,
        dir: plan.places.dir().into(),
        shared: plan.places.shared().map(Into::into),
        number: job,
        jobs: plan.jobs,
        // Jobs with the same seed would run the same children.
        rng_seed: plan.rng_seed.wrapping_add(job as u64),
        max_operations: plan.max_operations,
        build: plan.build.clone(),
        until,
        limit: plan.left(),
        generated: plan.generated,
        exhaustive: plan.exhaustive,
        checks: plan.checks,
        begins,
    };
    let line = serde_json::to_string(&worker_job).map_err(|it| CampaignError::Worker(it.into()))?;
    let executable = plan.executable.clone().with(["fuzz-worker", &line]);
    let executable = executable.with(plan.limits.options());
    let (worker, outputs) = executable.start().map_err(CampaignError::Worker)?;
    let heard = heard.clone();
    std::thread::spawn(move || {
        let mut pass = |line: &[u8]| {
            // The code under test may print lines before the worker takes standard output.
            if let Ok(message) = serde_json::from_slice(line) {
                let _ = heard.send((job, Ok(message)));
            }
        };
        let stderr = outputs.each_line(RUN_ERROR_BYTES, &mut pass);
        let _ = heard.send((job, Err(stderr.unwrap_or_default())));
    });
    Ok(worker)
}
