//! A campaign: many iterations, on several threads, and what they found together.

mod found;
mod plan;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::base::error::Error;

use super::iteration::{Course, RecipeRunner};
use super::page;
use super::reports::{DivergenceReport, ReportOrigin, Reports};
use super::summary::{FoundDivergence, Summary};
use super::workdir::WorkFolder;
use crate::recipes::RecipeError;
use crate::recipes::recipe::Recipe;
use found::{NewDivergence, Unreported};

pub(super) use plan::MAX_LEFT_OUT;
pub use plan::{NoIteration, Plan};

/// The time between two summaries on the disk.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(5);

/// The number of first iterations of which one must work. If all of them fail, the campaign cannot run.
const MAX_FAILED_ITERATIONS: u64 = 20;

/// The reason why a campaign could not go on.
#[derive(Debug, thiserror::Error)]
pub enum DifferentialError {
    /// No iteration is as the user wants.
    #[error(transparent)]
    NoIteration(#[from] NoIteration),
    /// A file of the campaign could not be read or written.
    #[error(transparent)]
    File(#[from] Error),
    /// No iteration could be carried out.
    #[error("none of {iterations} iterations could be carried out; the last one: {what}")]
    NoneWorks {
        /// The number of iterations.
        iterations: u64,
        /// The reason of the last one.
        what: String,
    },
}

/// A running campaign.
pub struct DifferentialCampaign<'c> {
    /// Its task.
    pub plan: &'c Plan,
    /// The folder in which it works.
    pub folder: &'c WorkFolder,
    /// The folder of its reports.
    pub reports: &'c Reports,
    /// Ends the campaign after the iterations that are running.
    pub stop: Arc<AtomicBool>,
    state: Mutex<State>,
}

struct State {
    /// The number of the next iteration.
    next: u64,
    /// The number of iterations that are left to hand out.
    left: u64,
    summary: Summary,
    /// The divergences whose reports are still written. No other thread writes them, and no summary names them.
    unreported: Unreported,
    /// The first failure of the campaign itself.
    failure: Option<DifferentialError>,
    saved: Instant,
}

impl<'c> DifferentialCampaign<'c> {
    /// Creates a campaign.
    pub fn new(
        plan: &'c Plan,
        folder: &'c WorkFolder,
        reports: &'c Reports,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let summary = Summary {
            rng_seed: plan.rng_seed,
            qemu_version: plan.sides.qemu.version.clone(),
            tested: plan.sides.tested.name(),
            ..Summary::default()
        };
        let (next, left) = (plan.first, plan.iterations);
        let (unreported, saved) = (Unreported::default(), Instant::now());
        let state = State { next, left, summary, unreported, failure: None, saved };
        Self { plan, folder, reports, stop, state: Mutex::new(state) }
    }

    /// Carries out all iterations, and calls `watch` after each one. Returns the summary, which it has also written to
    /// the folder of the reports.
    ///
    /// # Errors
    /// A report cannot be written, or no iteration can be carried out.
    pub fn run(&self, watch: &(impl Fn(&Summary) + Sync)) -> Result<Summary, DifferentialError> {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for job in 0..self.plan.jobs {
                scope.spawn(move || {
                    while let Some((number, recipe)) = self.draw() {
                        let outcome = self.carry_out(job, number, &recipe, start);
                        self.note_failure(outcome);
                        watch(&self.lock().summary);
                    }
                });
            }
        });
        let mut state = self.lock();
        state.summary.is_complete = state.left == 0 && state.failure.is_none();
        self.save(&mut state, start)?;
        match state.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(state.summary.clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked left counts that are at most one short.
        self.state.lock().unwrap_or_else(|lock| lock.into_inner())
    }

    /// Hands out the next iteration that the plan wants.
    fn draw(&self) -> Option<(u64, Recipe)> {
        let mut state = self.lock();
        if state.left == 0 || self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let Some((number, recipe)) = self.plan.next(state.next) else {
            state.failure = Some(NoIteration(state.next).into());
            state.left = 0;
            return None;
        };
        state.next = number.saturating_add(1);
        state.left -= 1;
        Some((number, recipe))
    }

    fn note_failure(&self, outcome: Result<(), DifferentialError>) {
        if let Err(error) = outcome {
            self.stop.store(true, Ordering::Relaxed);
            let failure = &mut self.lock().failure;
            *failure = failure.take().or(Some(error));
        }
    }

    /// Carries out one iteration in the folder of a job, and reports its divergence if it is new.
    fn carry_out(
        &self,
        job: usize,
        number: u64,
        recipe: &Recipe,
        start: Instant,
    ) -> Result<(), DifferentialError> {
        let Plan { sides, known, rng_seed, .. } = self.plan;
        let course = match self.folder.job(job) {
            Ok(folder) => RecipeRunner { sides, known, folder: &folder }.run(recipe),
            Err(error) => Course::default().failed(recipe, (0, None), &RecipeError::Folder(error)),
        };
        let origin = ReportOrigin { rng_seed: *rng_seed, iteration: number, recipe, sides };
        let is_new = self.count(origin, &course, start);
        self.fail_if_none_works(&course)?;
        if let Some(met) = course.met.filter(|_| is_new) {
            if self.plan.fail_fast {
                self.stop.store(true, Ordering::Relaxed);
            }
            let folder = self.folder.path_of(job);
            let new = NewDivergence { origin, met, known, folder: &folder };
            self.name(&new.report(self.reports)?, start)?;
            if let Some(minimized) = new.minimize(self.reports)? {
                self.name(&minimized, start)?;
            }
        }
        let mut state = self.lock();
        if state.saved.elapsed() > SUMMARY_INTERVAL {
            self.save(&mut state, start)?;
        }
        Ok(())
    }

    /// Counts an iteration. Returns true if it met a divergence that no earlier iteration met.
    fn count(&self, origin: ReportOrigin<'_>, course: &Course, start: Instant) -> bool {
        let mut state = self.lock();
        let State { summary, unreported, .. } = &mut *state;
        summary.distribution.add(origin.recipe, course);
        summary.failed += u64::from(course.is_failed());
        summary.measure(start.elapsed(), self.plan.sides.cpu.seconds());
        summary.count_known(origin, &self.plan.known, course);
        let Some(met) = &course.met else { return false };
        match summary.found.get_mut(&met.fingerprint) {
            Some(found) => {
                found.times += 1;
                false
            }
            None => unreported.count(&met.fingerprint),
        }
    }

    /// Fails if the first iterations, or all, could not be carried out.
    fn fail_if_none_works(&self, course: &Course) -> Result<(), DifferentialError> {
        let state = self.lock();
        let iterations = state.summary.distribution.iterations;
        let is_late = iterations >= self.plan.iterations.min(MAX_FAILED_ITERATIONS);
        match course.met.as_ref().filter(|_| is_late && state.summary.failed == iterations) {
            Some(met) => {
                let what = met.divergence.detail.clone();
                Err(DifferentialError::NoneWorks { iterations, what })
            }
            None => Ok(()),
        }
    }

    /// Names a divergence in the summary. Its report is there.
    fn name(&self, report: &DivergenceReport, start: Instant) -> Result<(), DifferentialError> {
        let mut state = self.lock();
        let fingerprint = &report.fingerprint;
        let known = state.summary.found.get(fingerprint).map(|found| found.times);
        let times = known.unwrap_or_else(|| state.unreported.take(fingerprint));
        let found = FoundDivergence::of(report, times);
        state.summary.found.insert(fingerprint.clone(), found);
        self.save(&mut state, start)
    }

    /// Writes the summary, for programs and for people.
    fn save(&self, state: &mut State, start: Instant) -> Result<(), DifferentialError> {
        state.summary.measure(start.elapsed(), self.plan.sides.cpu.seconds());
        state.saved = Instant::now();
        Ok(page::save(&state.summary, self.reports)?)
    }
}
