//! A campaign: many iterations, on several threads, and what they found together.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::iteration::{Course, DISK_FOLDER, RecipeRunner, format_of};
use super::minimize::{MinimizedRecipe, Tries, minimize};
use super::reports::{ReportOrigin, Reports};
use super::sides::Sides;
use super::summary::{CampaignResults, Summary};
use super::workdir::WorkFolder;
use crate::base::error::Error;
use crate::base::features::FeatureSet;
use crate::disk::image_format::ImageFormat;
use crate::harness::KnownFindings;
use crate::recipes::claims::features_of;
use crate::recipes::recipe::{DiskOperation, Recipe};
use crate::recipes::{RecipeError, draw};

/// The number of first iterations of which one must work. If all of them fail, the campaign cannot run.
const MAX_FAILED_ITERATIONS: u64 = 20;

/// The longest time that a divergence is minimized. Recipes that hang take the time limit of a process each.
const MAX_MINIMIZE_TIME: Duration = Duration::from_secs(300);

/// The reason why a campaign could not go on, or a recording could not be written or compared.
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
    /// A process could not be started, or a file could not be read or written, while an iteration was recorded.
    #[error("iteration {number}: {what}")]
    Failed {
        /// The number of the iteration.
        number: u64,
        /// The reason.
        what: String,
    },
    /// A recording could not be read.
    #[error("{}: {what}, expected a file that --record wrote", .path.display())]
    Malformed {
        /// The recording.
        path: PathBuf,
        /// The fault.
        what: String,
    },
}

/// A running campaign.
pub struct DifferentialCampaign<'c> {
    /// Its task.
    plan: &'c Plan,
    /// The folder in which it works.
    folder: &'c WorkFolder,
    /// Ends the campaign after the iterations that are running.
    stop: Arc<AtomicBool>,
    results: CampaignResults<'c>,
    queue: Mutex<Queue>,
}

/// The iterations that are left.
struct Queue {
    /// The number of the next iteration.
    next: u64,
    /// The number of iterations that are left to hand out.
    left: u64,
    /// The first failure of the campaign itself.
    failure: Option<DifferentialError>,
}

impl<'c> DifferentialCampaign<'c> {
    /// Creates a campaign that writes its reports to `reports`.
    pub fn new(
        plan: &'c Plan,
        folder: &'c WorkFolder,
        reports: &'c Reports,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let results = CampaignResults::new(plan.rng_seed, &plan.sides, &plan.known, reports);
        let queue = Queue { next: plan.first, left: plan.iterations, failure: None };
        Self { plan, folder, stop, results, queue: Mutex::new(queue) }
    }

    /// Carries out all iterations, and calls `watch` after each one. Returns the summary, which it has also written to
    /// the folder of the reports.
    ///
    /// # Errors
    /// A report cannot be written, or no iteration can be carried out.
    pub fn run(&self, watch: &(impl Fn(&Summary) + Sync)) -> Result<Summary, DifferentialError> {
        std::thread::scope(|scope| {
            for job in 0..self.plan.jobs {
                scope.spawn(move || {
                    while let Some((number, recipe)) = self.draw() {
                        if let Err(error) = self.carry_out(job, number, &recipe) {
                            self.stop.store(true, Ordering::Relaxed);
                            self.lock().failure.get_or_insert(error);
                        }
                        self.results.with_summary(watch);
                    }
                });
            }
        });
        let Queue { left, failure, .. } = &mut *self.lock();
        let summary = self.results.finish(*left == 0 && failure.is_none())?;
        failure.take().map_or(Ok(summary), Err)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A thread that panicked has handed out its iteration.
        self.queue.lock().unwrap_or_else(|lock| lock.into_inner())
    }

    /// Hands out the next iteration that the plan wants.
    fn draw(&self) -> Option<(u64, Recipe)> {
        let mut queue = self.lock();
        if queue.left == 0 || self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let Some((number, recipe)) = self.plan.next(queue.next) else {
            queue.failure = Some(NoIteration(queue.next).into());
            queue.left = 0;
            return None;
        };
        queue.next = number.saturating_add(1);
        queue.left -= 1;
        Some((number, recipe))
    }

    /// Carries out one iteration in the folder of a job, and reports its divergence if it is new.
    fn carry_out(&self, job: usize, number: u64, recipe: &Recipe) -> Result<(), DifferentialError> {
        let Plan { sides, known, .. } = self.plan;
        let course = match self.folder.job(job) {
            Ok(folder) => RecipeRunner { sides, known, folder: &folder }.run(recipe),
            Err(error) => Course::default().failed(recipe, (0, None), &RecipeError::Folder(error)),
        };
        let origin = self.results.origin(number, recipe);
        let is_new = self.results.count(origin, &course);
        self.fail_if_none_works(&course)?;
        if let Some(met) = course.met.filter(|_| is_new) {
            if self.plan.fail_fast {
                self.stop.store(true, Ordering::Relaxed);
            }
            let folder = self.folder.path_of(job);
            let as_found = MinimizedRecipe::as_found(recipe, met);
            self.results.report(origin, &as_found, &folder.join(DISK_FOLDER))?;
            self.minimize(origin, as_found, &folder)?;
        }
        Ok(self.results.save_sometimes()?)
    }

    /// Minimizes a divergence, and replaces its report. If the divergence does not occur again, it keeps its first
    /// report.
    fn minimize(
        &self,
        origin: ReportOrigin<'_>,
        as_found: MinimizedRecipe,
        folder: &Path,
    ) -> Result<(), Error> {
        let deadline = Instant::now().checked_add(MAX_MINIMIZE_TIME);
        let tries = Tries { sides: origin.sides, known: &self.plan.known, folder, deadline };
        let minimized = minimize(as_found, tries);
        // The images of the minimized recipe are those of the report.
        let again = tries.met(&minimized.recipe).ok().flatten();
        match again.is_some_and(|again| again.fingerprint == minimized.met.fingerprint) {
            true => self.results.report(origin, &minimized, &folder.join(DISK_FOLDER)),
            false => Ok(()),
        }
    }

    /// Fails if the first iterations, or all, could not be carried out.
    fn fail_if_none_works(&self, course: &Course) -> Result<(), DifferentialError> {
        let (iterations, failed) =
            self.results.with_summary(|all| (all.distribution.iterations, all.failed));
        let is_late = iterations >= self.plan.iterations.min(MAX_FAILED_ITERATIONS);
        match course.met.as_ref().filter(|_| is_late && failed == iterations) {
            Some(met) => {
                let what = met.divergence.detail.clone();
                Err(DifferentialError::NoneWorks { iterations, what })
            }
            None => Ok(()),
        }
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
