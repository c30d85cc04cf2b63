//! The results of the iterations so far, from all threads: counts, known divergences, and new ones with their reports.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::divergence::{cause_of, reason_of};
use super::iteration::{Course, format_of};
use super::minimize::MinimizedRecipe;
use super::reports::{ReportOrigin, Reports, describe_known};
use super::sides::Sides;
use crate::base::error::Error;
use crate::harness::KnownFindings;
use crate::recipes::recipe::Recipe;

/// The time between two summaries on the disk.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(5);

/// The work and the findings of a campaign.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The seed of the campaign.
    pub rng_seed: u64,
    /// The version of qemu-img.
    pub qemu_version: String,
    /// The program under test.
    pub tested: String,
    /// The campaign has carried out all iterations.
    pub is_complete: bool,
    /// The time since the start, in seconds.
    pub seconds: f64,
    /// The number of iterations that failed: a process could not be started, or a file could not be read or written.
    pub failed: u64,
    /// The new divergences, by fingerprint.
    pub found: BTreeMap<String, FoundDivergence>,
    /// The known divergences that occurred, by the fingerprint in the list.
    pub known: BTreeMap<String, KnownDivergence>,
    /// The shares of the iterations.
    pub distribution: Distribution,
}

/// A known divergence that occurred in a campaign.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KnownDivergence {
    /// The number of iterations that showed it.
    pub times: u64,
    /// One of them.
    pub iteration: u64,
    /// The shell commands of that iteration, up to the divergence.
    pub commands: Vec<String>,
    /// The text of an issue about it.
    #[serde(skip)]
    pub issue: String,
}

/// A divergence of a campaign.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FoundDivergence {
    /// The number of iterations that met it.
    pub times: u64,
    /// The first of them.
    pub iteration: u64,
    /// The difference in the minimized image.
    pub detail: String,
    /// The shell commands that show it.
    pub commands: Vec<String>,
    /// The folder of the report, inside the folder of all reports.
    pub folder: String,
}

/// Counts of iterations. Each map goes from a name to the number of iterations that had it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Distribution {
    /// The number of iterations.
    pub iterations: u64,
    /// The formats of the disks that were compared.
    pub formats: BTreeMap<String, u64>,
    /// The operations.
    pub operations: BTreeMap<String, u64>,
    /// The comparisons.
    pub comparisons: BTreeMap<String, u64>,
}

impl Distribution {
    fn add(&mut self, recipe: &Recipe, course: &Course) {
        self.iterations += 1;
        count(&mut self.formats, recipe.steps.iter().map(|step| format_of(&step.disk)).collect());
        let operations = recipe.steps.iter().map(|step| step.operation.name());
        count(&mut self.operations, operations.collect());
        count(&mut self.comparisons, course.comparisons.clone());
    }

    /// Returns the groups of counts, with their headings.
    pub fn groups(&self) -> [(&'static str, &BTreeMap<String, u64>); 3] {
        [
            ("formats", &self.formats),
            ("operations", &self.operations),
            ("comparisons", &self.comparisons),
        ]
    }
}

/// Counts each name once.
fn count(counts: &mut BTreeMap<String, u64>, mut names: Vec<&str>) {
    names.sort_unstable();
    names.dedup();
    for name in names {
        *counts.entry(name.to_string()).or_default() += 1;
    }
}

/// The results so far.
pub struct CampaignResults<'c> {
    sides: &'c Sides,
    /// The divergences that are known.
    known: &'c KnownFindings,
    reports: &'c Reports,
    start: Instant,
    state: Mutex<ResultsState>,
}

struct ResultsState {
    summary: Summary,
    /// The number of iterations that met each divergence whose report is still written. No other thread writes it, and
    /// no summary names it.
    unreported: BTreeMap<String, u64>,
    saved: Instant,
}

impl<'c> CampaignResults<'c> {
    /// Returns the results before the first iteration of a campaign with this seed.
    pub fn new(
        rng_seed: u64,
        sides: &'c Sides,
        known: &'c KnownFindings,
        reports: &'c Reports,
    ) -> Self {
        let summary = Summary {
            rng_seed,
            qemu_version: sides.qemu.version.clone(),
            tested: sides.tested.name(),
            ..Summary::default()
        };
        let start = Instant::now();
        let state = ResultsState { summary, unreported: BTreeMap::new(), saved: start };
        Self { sides, known, reports, start, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, ResultsState> {
        // A thread that panicked left counts that are at most one short.
        self.state.lock().unwrap_or_else(|lock| lock.into_inner())
    }

    /// Calls `look` with the summary.
    pub fn with_summary<T>(&self, look: impl FnOnce(&Summary) -> T) -> T {
        look(&self.lock().summary)
    }

    /// Counts an iteration. Returns true if it met a divergence that no earlier iteration met: then its thread writes
    /// the report.
    pub fn count(&self, origin: ReportOrigin<'_>, course: &Course) -> bool {
        let mut state = self.lock();
        let ResultsState { summary, unreported, .. } = &mut *state;
        summary.distribution.add(origin.recipe, course);
        summary.failed += u64::from(course.is_failed());
        self.count_known(summary, origin, course);
        let Some(met) = &course.met else { return false };
        let times = match summary.found.get_mut(&met.fingerprint) {
            Some(found) => &mut found.times,
            None => unreported.entry(met.fingerprint.clone()).or_default(),
        };
        *times += 1;
        *times == 1
    }

    /// Counts the known divergences of an iteration.
    fn count_known(&self, summary: &mut Summary, origin: ReportOrigin<'_>, course: &Course) {
        for (fingerprint, met) in &course.known {
            let Some(finding) = self.known.iter().find(|it| it.fingerprint == *fingerprint) else {
                continue;
            };
            let counted = summary.known.entry(fingerprint.clone()).or_insert_with(|| {
                let reason = reason_of(cause_of(self.known, finding));
                let (commands, issue) = describe_known(origin, met, reason);
                KnownDivergence { times: 0, iteration: origin.iteration, commands, issue }
            });
            counted.times += 1;
        }
    }

    /// Writes the report of a divergence, whose recipe was carried out in `disk` last. Then names it in the summary.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn report(
        &self,
        origin: ReportOrigin<'_>,
        minimized: &MinimizedRecipe,
        disk: &Path,
    ) -> Result<(), Error> {
        let report = self.reports.write(origin, minimized, disk)?;
        let mut state = self.lock();
        let counted = state.summary.found.get(&report.fingerprint).map(|found| found.times);
        let times = counted.or_else(|| state.unreported.remove(&report.fingerprint)).unwrap_or(1);
        let found = FoundDivergence {
            times,
            iteration: report.iteration,
            detail: report.detail,
            commands: report.commands,
            folder: report.folder,
        };
        state.summary.found.insert(report.fingerprint, found);
        self.save(&mut state)
    }

    /// Writes the summary from time to time.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_sometimes(&self) -> Result<(), Error> {
        let mut state = self.lock();
        match state.saved.elapsed() > SUMMARY_INTERVAL {
            true => self.save(&mut state),
            false => Ok(()),
        }
    }

    /// Writes the last summary, and returns it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(&self, is_complete: bool) -> Result<Summary, Error> {
        let mut state = self.lock();
        state.summary.is_complete = is_complete;
        self.save(&mut state)?;
        Ok(state.summary.clone())
    }

    /// Writes the summary to the folder of the reports.
    fn save(&self, state: &mut ResultsState) -> Result<(), Error> {
        state.summary.seconds = self.start.elapsed().as_secs_f64();
        state.saved = Instant::now();
        let json = serde_json::to_vec_pretty(&state.summary)
            .map_err(|error| Error::file(self.reports.dir(), error.into()))?;
        self.reports.replace("summary.json", &json)
    }

    /// Returns the iteration with this number and recipe, as reports name it.
    pub fn origin<'o>(&'o self, iteration: u64, recipe: &'o Recipe) -> ReportOrigin<'o> {
        let rng_seed = self.lock().summary.rng_seed;
        ReportOrigin { rng_seed, iteration, recipe, sides: self.sides }
    }
}
