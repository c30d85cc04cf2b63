//! A campaign: many iterations, on several threads, and what they found together.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::disk::error::Error;
use crate::disk::features::FeatureSet;
use crate::disk::image_format::ImageFormat;

use super::claims::features_of;
use super::draw;
use super::iteration::{Course, Met, RecipeRunner, format_of};
use super::minimize::{Tries, minimize};
use super::page;
use super::perform::IterationError;
use super::quirks::Quirk;
use super::recipe::{DiskOperation, Recipe};
use super::reports::{ReportOrigin, Reports};
use super::sides::Sides;
use super::summary::{FoundDivergence, Summary};
use super::workdir::WorkFolder;

/// The time between two summaries on the disk.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(5);

/// The maximum number of consecutive iterations that a plan skips. A plan that skips more matches no iteration.
pub(super) const MAX_LEFT_OUT: u64 = 10_000;
/// The longest time that a divergence is minimized. Recipes that hang take the time limit of a process each.
const MAX_MINIMIZE_TIME: Duration = Duration::from_secs(300);

/// The task of a campaign.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of all random numbers.
    pub rng_seed: u64,
    /// The first iteration.
    pub first: u64,
    /// The number of iterations.
    pub iterations: u64,
    /// The number of threads.
    pub jobs: usize,
    /// The formats that the disks of an iteration may have.
    pub formats: Vec<ImageFormat>,
    /// The operations that an iteration may have, beside the creation.
    pub operations: Vec<DiskOperation>,
    /// Features that the disks of an iteration may not have.
    pub lacks: FeatureSet,
    /// End at the first divergence.
    pub fail_fast: bool,
    /// The programs.
    pub sides: Sides,
    /// The divergences that are known.
    pub quirks: &'static [Quirk],
}

impl Plan {
    /// Returns the next iteration that the user wants, from `number` on, and its number.
    pub(super) fn next(&self, number: u64) -> Option<(u64, Recipe)> {
        let numbers = number..number.saturating_add(MAX_LEFT_OUT);
        let drawn = |number| (number, draw::recipe(self.rng_seed, number));
        numbers.map(drawn).find(|(_, recipe)| self.wants(recipe))
    }

    /// Reports whether an iteration has only formats and operations that the user wants. The recipe of an iteration
    /// never depends on that wish: other iterations are skipped.
    fn wants(&self, recipe: &Recipe) -> bool {
        let has_all_claims = !self.lacks.meets(features_of(recipe));
        has_all_claims
            && recipe.steps.iter().all(|step| {
                let format = ImageFormat::named(format_of(&step.disk).as_bytes());
                let is_wanted = |operation| self.operations.contains(&operation);
                format.is_none_or(|format| self.formats.contains(&format))
                    && (step.operation == DiskOperation::Create || is_wanted(step.operation))
            })
    }
}

/// No iteration is as the user wants.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "none of the {MAX_LEFT_OUT} iterations from number {0} on matches --formats, --operations and --lacks, \
     expected a wider selection"
)]
pub struct NoIteration(pub u64);

/// The reason why a campaign could not go on.
#[derive(Debug, thiserror::Error)]
pub enum DifferentialError {
    /// No iteration is as the user wants.
    #[error(transparent)]
    NoIteration(#[from] NoIteration),
    /// A file of the campaign could not be read or written.
    #[error(transparent)]
    File(#[from] Error),
    /// An iteration could not be carried out.
    #[error("iteration {number}: {error}")]
    Iteration {
        /// The number of the iteration.
        number: u64,
        /// The reason.
        error: IterationError,
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
        let state = State { next, left, summary, failure: None, saved: Instant::now() };
        Self { plan, folder, reports, stop, state: Mutex::new(state) }
    }

    /// Carries out all iterations, and calls `watch` after each one. Returns the summary, which it has also written to
    /// the folder of the reports.
    ///
    /// # Errors
    /// A folder cannot be used, or an iteration cannot be carried out.
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
        let folder = self.folder.job(job)?;
        let Plan { sides, quirks, .. } = self.plan;
        let course = RecipeRunner { sides, quirks, folder: &folder }
            .run(recipe)
            .map_err(|error| DifferentialError::Iteration { number, error })?;
        let is_new = self.count(recipe, &course, start);
        if let Some(met) = course.met.filter(|_| is_new) {
            if self.plan.fail_fast {
                self.stop.store(true, Ordering::Relaxed);
            }
            self.report(number, recipe, met, &folder)?;
        }
        let mut state = self.lock();
        if is_new || state.saved.elapsed() > SUMMARY_INTERVAL {
            self.save(&mut state, start)?;
        }
        Ok(())
    }

    /// Counts an iteration. Returns true if it met a divergence that no earlier iteration met.
    fn count(&self, recipe: &Recipe, course: &Course, start: Instant) -> bool {
        let mut state = self.lock();
        let summary = &mut state.summary;
        summary.distribution.add(recipe, course);
        summary.times.add(course);
        summary.measure(start.elapsed());
        for id in &course.quirks {
            *summary.quirks.entry((*id).to_string()).or_default() += 1;
        }
        let Some(met) = &course.met else { return false };
        let known = summary.found.get_mut(&met.fingerprint);
        let is_new = known.is_none();
        match known {
            Some(found) => found.times += 1,
            // The report follows, and another thread must not write it too.
            None => {
                summary.found.insert(met.fingerprint.clone(), FoundDivergence::default());
            }
        }
        is_new
    }

    /// Minimizes a divergence, and writes its report.
    fn report(
        &self,
        iteration: u64,
        recipe: &Recipe,
        met: Met,
        folder: &Path,
    ) -> Result<(), DifferentialError> {
        let Plan { sides, quirks, rng_seed, .. } = self.plan;
        let deadline = Instant::now().checked_add(MAX_MINIMIZE_TIME);
        let tries = Tries { sides, quirks, folder, deadline };
        let minimized = minimize(recipe, met, tries);
        // The images of the minimized recipe are those of the report.
        tries
            .met(&minimized.recipe)
            .map_err(|error| DifferentialError::Iteration { number: iteration, error })?;
        let origin = ReportOrigin { rng_seed: *rng_seed, iteration, recipe, sides };
        let report = self.reports.write(origin, &minimized, &folder.join("disk"))?;
        if let Some(found) = self.lock().summary.found.get_mut(&report.fingerprint) {
            *found = FoundDivergence::of(&report, found.times);
        }
        Ok(())
    }

    /// Writes the summary, for programs and for people.
    fn save(&self, state: &mut State, start: Instant) -> Result<(), DifferentialError> {
        state.summary.measure(start.elapsed());
        state.saved = Instant::now();
        Ok(page::save(&state.summary, self.reports)?)
    }
}
