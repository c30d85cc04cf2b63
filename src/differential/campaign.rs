//! A campaign: many iterations, on several threads, and what they found together.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::iteration::{Course, DISK_FOLDER, Met, RecipeRunner, format_of};
use super::minimize::{MinimizedRecipe, Tries, minimize};
use super::reports::summary::{self, FoundDivergence, Summary};
use super::reports::{DivergenceReport, ReportOrigin, Reports};
use super::sides::Sides;
use super::workdir::WorkFolder;
use crate::base::error::Error;
use crate::base::features::FeatureSet;
use crate::disk::image_format::ImageFormat;
use crate::harness::KnownFindings;
use crate::recipes::claims::features_of;
use crate::recipes::recipe::{DiskOperation, Recipe};
use crate::recipes::{RecipeError, draw};

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
        Ok(summary::save(&state.summary, self.reports)?)
    }
}

/// The maximum number of consecutive iterations that a plan skips. A plan that skips more matches no iteration.
pub(in crate::differential) const MAX_LEFT_OUT: u64 = 10_000;

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
    pub known: KnownFindings,
}

impl Plan {
    /// Returns the next iteration that the user wants, from `number` on, and its number.
    pub(in crate::differential) fn next(&self, number: u64) -> Option<(u64, Recipe)> {
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

/// The longest time that a divergence is minimized. Recipes that hang take the time limit of a process each.
const MAX_MINIMIZE_TIME: Duration = Duration::from_secs(300);

/// The fingerprints of divergences without a report, and the number of iterations that met each.
#[derive(Debug, Default)]
struct Unreported(BTreeMap<String, u64>);

impl Unreported {
    /// Counts an iteration. Returns true for the first one, whose thread writes the report.
    fn count(&mut self, fingerprint: &str) -> bool {
        let times = self.0.entry(fingerprint.to_string()).or_default();
        *times += 1;
        *times == 1
    }

    /// Takes out a divergence that has a report now. Returns the number of iterations that met it.
    fn take(&mut self, fingerprint: &str) -> u64 {
        self.0.remove(fingerprint).unwrap_or(1)
    }
}

/// A divergence that an iteration met for the first time.
struct NewDivergence<'n> {
    /// The iteration.
    origin: ReportOrigin<'n>,
    /// The divergence.
    met: Met,
    /// The divergences that are known.
    known: &'n KnownFindings,
    /// The folder of the job that met it.
    folder: &'n Path,
}

impl NewDivergence<'_> {
    /// Writes the report of the divergence as the iteration met it.
    ///
    /// # Errors
    /// A file cannot be read or written.
    fn report(&self, reports: &Reports) -> Result<DivergenceReport, Error> {
        let as_found = MinimizedRecipe::as_found(self.origin.recipe, self.met.clone());
        reports.write(self.origin, &as_found, &self.folder.join(DISK_FOLDER))
    }

    /// Minimizes the divergence, and replaces its report. Returns `None` if the divergence does not occur again: it
    /// keeps its first report.
    ///
    /// # Errors
    /// A file cannot be read or written.
    fn minimize(self, reports: &Reports) -> Result<Option<DivergenceReport>, Error> {
        let Self { origin, met, known, folder } = self;
        let deadline = Instant::now().checked_add(MAX_MINIMIZE_TIME);
        let tries = Tries { sides: origin.sides, known, folder, deadline };
        let minimized = minimize(origin.recipe, met, tries);
        // The images of the minimized recipe are those of the report.
        let again = tries.met(&minimized.recipe).ok().flatten();
        match again.is_some_and(|again| again.fingerprint == minimized.met.fingerprint) {
            true => reports.write(origin, &minimized, &folder.join(DISK_FOLDER)).map(Some),
            false => Ok(None),
        }
    }
}
