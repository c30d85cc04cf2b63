//! A campaign: the embedded loop in several worker processes at a time, so that no crash ends it.
//!
//! The supervisor ([`Campaign`]) starts a worker for each job, reads its messages, ends runs that hang, and starts the
//! next worker where one ended. A worker is an executable that the caller names. It is run as `EXECUTABLE fuzz-worker
//! JOB LIMITS...`, as the command `qcowfuzz` understands it, and calls [`worker::run`]. A worker writes each input to a
//! file before it runs it (`subject`), so the supervisor knows the input that ended it. Everything that a campaign
//! keeps is in its [`Places`].

pub(crate) mod exhaustive;
mod job;
mod plan;
mod run_times;
pub(crate) mod subject;
mod summary;
pub mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crate::base::error::Error;
use crate::findings::runner::Finding;
use crate::harness::MetFinding;

use super::embedded::{FuzzProgress, SavedFindings};

use exhaustive::Judged;
use job::{End, Heard, Job};
use run_times::RunTimes;

pub use plan::{CampaignError, CampaignPlan, Places, build_name};
pub use run_times::SlowFeature;
pub use summary::{
    CampaignSummary, Finished, FoundBug, KnownBug, SeenFingerprint, UnansweredQuestion,
};

/// The progress of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The number of runs, without those of earlier campaigns.
    pub runs: u64,
    /// The time since the start.
    pub elapsed: Duration,
    /// The highest number of edges that a job covers.
    pub edges: usize,
    /// The highest number of rare events that a job covers.
    pub rare_events: usize,
    /// The highest number of inputs that a job keeps.
    pub inputs: usize,
    /// The number of bugs.
    pub found: usize,
    /// The programs and runs that an exhaustive search has judged.
    pub judged: Judged,
    /// While a job reads the corpus: the number of its runs, each input a few times.
    pub runs_of_corpus: Option<u64>,
}

/// The time between two looks at the clock.
const CLOCK_INTERVAL: Duration = Duration::from_millis(200);

/// A campaign that runs.
#[derive(Debug)]
pub struct Campaign<'p> {
    plan: &'p CampaignPlan,
    jobs: Vec<Job>,
    sender: Sender<Heard>,
    events: Receiver<Heard>,
    stop: Arc<AtomicBool>,
    /// The inputs that ended workers.
    found: SavedFindings,
    start: Instant,
}

impl<'p> Campaign<'p> {
    /// Starts all jobs. They end early when `stop` becomes true.
    ///
    /// # Errors
    /// The saved state of a job cannot be read, or a worker cannot be started.
    pub fn start(plan: &'p CampaignPlan, stop: Arc<AtomicBool>) -> Result<Self, CampaignError> {
        let (sender, events) = mpsc::channel();
        let start = |number| Job::start(number, plan, &sender);
        let jobs = (0..plan.jobs).map(start).collect::<Result<_, _>>()?;
        let (found, start) = (SavedFindings::default(), Instant::now());
        Ok(Self { plan, jobs, sender, events, stop, found, start })
    }

    /// Supervises the jobs until all have ended. Calls `report` a few times a second.
    pub fn supervise(mut self, report: &mut dyn FnMut(&Status)) -> Finished {
        let mut looked = Instant::now();
        while self.jobs.iter().any(|job| !job.done) {
            match self.events.recv_timeout(CLOCK_INTERVAL) {
                Ok((job, Ok(message))) => self.jobs[job].take(message),
                Ok((job, Err(stderr))) => {
                    let ended = self.ended(job, &stderr);
                    self.note_failure(job, ended);
                }
                // The channel does not disconnect: `self` keeps a sender for the next workers.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if looked.elapsed() >= CLOCK_INTERVAL {
                looked = Instant::now();
                self.look(report);
            }
        }
        self.finished()
    }

    /// Ends a job that could not go on.
    fn note_failure(&mut self, job: usize, result: Result<(), CampaignError>) {
        if let Err(failure) = result {
            let job = &mut self.jobs[job];
            (job.failure, job.done) = (Some(failure.to_string()), true);
        }
    }

    /// Does the periodic work: looks for hangs, pauses that are over and for the end, and reports.
    fn look(&mut self, report: &mut dyn FnMut(&Status)) {
        let status = self.status();
        if self.plan.until_found && status.found > 0 {
            self.stop.store(true, Ordering::Relaxed);
        }
        if self.jobs.iter().any(|job| job.failure.is_some()) {
            self.stop.store(true, Ordering::Relaxed);
        }
        let stop = self.stop.load(Ordering::Relaxed);
        for job in self.jobs.iter_mut().filter(|job| !job.done) {
            job.end_hang(self.plan);
            if stop {
                job.stop();
            }
        }
        for number in 0..self.jobs.len() {
            if !self.jobs[number].done && self.jobs[number].waits_no_longer() {
                let started = self.start_next(number);
                self.note_failure(number, started);
            }
        }
        report(&status);
    }

    /// Finds out why a worker ended, and starts the next one.
    fn ended(&mut self, number: usize, stderr: &str) -> Result<(), CampaignError> {
        let job = &mut self.jobs[number];
        if self.stop.load(Ordering::Relaxed) {
            // A worker that has to end may be ended in the middle of a long run.
            job.done = true;
            return Ok(());
        }
        match job.ended(self.plan, stderr)? {
            End::Done => return Ok(()),
            End::Killer { input, end, alone } => {
                let fingerprint = end.fingerprint();
                let detail = match alone {
                    true => "no process survives this input",
                    false => "alone, this input does no harm: other runs came before it",
                };
                let finding = Finding { fingerprint, detail: detail.to_string(), guest: None };
                self.killer(&input, end.prefix(), &finding)?;
            }
            End::Killed => return Ok(()),
            End::Other => {}
        }
        self.start_next(number)
    }

    /// Starts the next worker of a job, unless the campaign is at its end.
    fn start_next(&mut self, number: usize) -> Result<(), CampaignError> {
        let job = &mut self.jobs[number];
        if self.plan.left().is_some_and(|left| left.is_zero()) {
            job.done = true;
            return Ok(());
        }
        job.restart(self.plan, &self.sender)
    }

    /// Records an input that ends workers as a finding, and keeps workers from running it again.
    fn killer(&mut self, input: &[u8], prefix: &str, finding: &Finding) -> Result<(), Error> {
        let CampaignPlan { places, known, .. } = self.plan;
        match known.find(&finding.fingerprint) {
            Some(known) => {
                let (known, seen) = (known.fingerprint.clone(), vec![finding.fingerprint.clone()]);
                self.found.add_known(&MetFinding { known, seen });
            }
            None => self.found.add(&places.artifacts()?, prefix, finding, input)?,
        }
        places.killers()?.add("", input)?;
        Ok(())
    }

    fn runs(&self) -> u64 {
        self.jobs.iter().map(Job::runs).sum()
    }

    fn status(&self) -> Status {
        let most = |of: fn(&FuzzProgress) -> usize| {
            self.jobs.iter().map(|job| of(&job.progress)).max().unwrap_or(0)
        };
        Status {
            runs: self.runs(),
            elapsed: self.start.elapsed(),
            edges: most(|it| it.edges),
            rare_events: most(|it| it.rare_events),
            inputs: most(|it| it.inputs),
            found: self.all_found().iter().count(),
            judged: self.judged(),
            runs_of_corpus: self.jobs.iter().filter_map(Job::runs_of_corpus).max(),
        }
    }

    fn judged(&self) -> Judged {
        let mut all = Judged::default();
        self.jobs.iter().for_each(|job| all.add(&job.judged));
        all
    }

    /// Returns the findings of all jobs, and the inputs that ended workers.
    fn all_found(&self) -> SavedFindings {
        let mut all = self.found.clone();
        self.jobs.iter().for_each(|job| all.extend(&job.found));
        all
    }

    fn finished(&self) -> Finished {
        let covered = self.jobs.iter().flat_map(|job| job.covered.iter().copied()).collect();
        let progress = self.jobs.iter().map(|job| job.progress).collect();
        let mut times = RunTimes::default();
        self.jobs.iter().for_each(|job| times.extend(&job.times));
        let slow = times.slowest();
        let failure = self.jobs.iter().find_map(|job| job.failure.clone());
        let judged = self.plan.exhaustive.map(|_| self.judged());
        let (runs, found) = (self.runs(), self.all_found());
        Finished { runs, found, covered, progress, judged, slow, failure }
    }
}

#[cfg(test)]
mod tests;
