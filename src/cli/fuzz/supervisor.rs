//! Looks after the jobs of a campaign: hears what their workers say, and has others go on where one ended.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use qcowfuzz::findings::runner::Finding;
use qcowfuzz::fuzzing::embedded::{Findings, Progress};

use crate::cli::exit::Failure;
use crate::cli::once::{NEVER, ended_by};
use crate::cli::print::spinner;

use super::job::{End, Heard, Job, Plan, left};

/// What came of a campaign.
#[derive(Debug, Default)]
pub struct Finished {
    /// How many runs there were, those of campaigns before not included.
    pub runs: u64,
    /// What was found.
    pub found: Findings,
    /// The places of the counters that are covered, as far as jobs came to their end.
    pub covered: BTreeSet<usize>,
    /// How far each job is.
    pub progress: Vec<Progress>,
    /// Why a job could not go on.
    pub failure: Option<String>,
}

/// How often the clock is looked at.
const CLOCK_INTERVAL: Duration = Duration::from_millis(200);

/// The campaign.
pub struct Supervisor<'p> {
    plan: Plan<'p>,
    jobs: Vec<Job>,
    sender: Sender<Heard>,
    events: Receiver<Heard>,
    stop: Arc<AtomicBool>,
    /// What ended workers.
    found: Findings,
    start: Instant,
    bar: ProgressBar,
}

impl<'p> Supervisor<'p> {
    /// Starts all jobs. They end early when `stop` becomes true.
    pub fn start(plan: Plan<'p>, stop: Arc<AtomicBool>) -> Result<Self, Failure> {
        let (sender, events) = mpsc::channel();
        let start = |number| Job::start(number, &plan, &sender);
        let jobs = (0..plan.jobs).map(start).collect::<Result<_, _>>()?;
        let bar = spinner();
        let (found, start) = (Findings::default(), Instant::now());
        Ok(Self { plan, jobs, sender, events, stop, found, start, bar })
    }

    /// Until all jobs have ended.
    pub fn watch(mut self) -> Finished {
        let mut looked = Instant::now();
        while self.jobs.iter().any(|job| !job.done) {
            match self.events.recv_timeout(CLOCK_INTERVAL) {
                Ok((job, Some(message))) => self.jobs[job].told(message),
                Ok((job, None)) => {
                    if let Err(failure) = self.ended(job) {
                        let job = &mut self.jobs[job];
                        (job.failure, job.done) = (Some(failure.to_string()), true);
                    }
                }
                // It does not disconnect: a sender is kept for those to come.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if looked.elapsed() >= CLOCK_INTERVAL {
                looked = Instant::now();
                self.look();
            }
        }
        self.bar.finish_and_clear();
        self.finished()
    }

    /// Does what is due now and then.
    fn look(&mut self) {
        let found = self.all_found();
        if self.plan.until_found && !found.is_empty() {
            self.stop.store(true, Ordering::Relaxed);
        }
        if self.jobs.iter().any(|job| job.failure.is_some()) {
            self.stop.store(true, Ordering::Relaxed);
        }
        let stop = self.stop.load(Ordering::Relaxed);
        for job in self.jobs.iter_mut().filter(|job| !job.done) {
            job.end_hang(&self.plan);
            if stop {
                job.stop();
            }
        }
        self.bar.set_message(self.line(found.len()));
        self.bar.tick();
    }

    /// Nothing more is heard of a worker.
    fn ended(&mut self, number: usize) -> Result<(), Failure> {
        let job = &mut self.jobs[number];
        if self.stop.load(Ordering::Relaxed) {
            // Who has to end may be ended in the middle of a long run.
            job.done = true;
            return Ok(());
        }
        match job.ended(&self.plan)? {
            End::Done => return Ok(()),
            End::Killer { input, status, hangs, alone } => {
                let (prefix, actual) = match hangs {
                    true => ("timeout-", NEVER.to_string()),
                    false => ("crash-", status.to_string()),
                };
                let fingerprint = ended_by(&actual);
                let detail = match alone {
                    true => "no process survives this input",
                    false => "alone, this input does no harm: other runs came before it",
                };
                let finding = Finding { fingerprint, detail: detail.to_string() };
                self.killer(&input, prefix, &finding)?;
            }
            End::Other => {}
        }
        let job = &mut self.jobs[number];
        if self.plan.end.is_some_and(|end| left(end).is_zero()) {
            job.done = true;
            return Ok(());
        }
        job.restart(&self.plan, &self.sender)
    }

    /// An input that ends workers is a finding, and is not run again.
    fn killer(&mut self, input: &[u8], prefix: &str, finding: &Finding) -> Result<(), Failure> {
        let places = self.plan.places;
        self.found.add(&places.artifacts()?, prefix, finding, input)?;
        places.killers()?.add("", input)?;
        Ok(())
    }

    fn runs(&self) -> u64 {
        self.jobs.iter().map(Job::runs).sum()
    }

    fn line(&self, found: usize) -> String {
        let (runs, seconds) = (self.runs(), self.start.elapsed().as_secs_f64().max(1e-3));
        let most = |of: fn(&Progress) -> usize| {
            self.jobs.iter().map(|job| of(&job.progress)).max().unwrap_or(0)
        };
        let rate = runs as f64 / seconds;
        let (edges, rare, inputs) =
            (most(|it| it.edges), most(|it| it.rare_events), most(|it| it.inputs));
        format!(
            "{runs} runs, {rate:.0}/s · {edges} edges, {rare} rare events · {inputs} inputs · {found} found"
        )
    }

    /// What all jobs have found, and what ended them.
    fn all_found(&self) -> Findings {
        let mut all = self.found.clone();
        self.jobs.iter().for_each(|job| all.extend(&job.found));
        all
    }

    fn finished(&self) -> Finished {
        let covered = self.jobs.iter().flat_map(|job| job.covered.iter().copied()).collect();
        let progress = self.jobs.iter().map(|job| job.progress).collect();
        let failure = self.jobs.iter().find_map(|job| job.failure.clone());
        Finished { runs: self.runs(), found: self.all_found(), covered, progress, failure }
    }
}
