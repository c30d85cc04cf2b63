//! The reports of new divergences. Minimizing one may take minutes, in which the campaign may be killed. So the campaign
//! writes the report of the divergence as it was found, then names it in the summary, and replaces the report at the end.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{DifferentialCampaign, DifferentialError, Plan};
use crate::differential::iteration::Met;
use crate::differential::minimize::{MinimizedRecipe, Tries, minimize};
use crate::differential::recipe::Recipe;
use crate::differential::reports::{DivergenceReport, ReportOrigin};
use crate::differential::summary::FoundDivergence;

/// The longest time that a divergence is minimized. Recipes that hang take the time limit of a process each.
const MAX_MINIMIZE_TIME: Duration = Duration::from_secs(300);

/// The fingerprints of divergences without a report, and the number of iterations that met each.
#[derive(Debug, Default)]
pub(super) struct Unreported(BTreeMap<String, u64>);

impl Unreported {
    /// Counts an iteration. Returns true for the first one, whose thread writes the report.
    pub(super) fn count(&mut self, fingerprint: &str) -> bool {
        let times = self.0.entry(fingerprint.to_string()).or_default();
        *times += 1;
        *times == 1
    }

    /// Takes out a divergence that has a report now. Returns the number of iterations that met it.
    fn take(&mut self, fingerprint: &str) -> u64 {
        self.0.remove(fingerprint).unwrap_or(1)
    }
}

impl DifferentialCampaign<'_> {
    /// Writes the report of a divergence that an iteration met in the folder of a job. Then minimizes the divergence,
    /// and replaces the report.
    pub(super) fn report(
        &self,
        iteration: u64,
        recipe: &Recipe,
        met: Met,
        folder: &Path,
        start: Instant,
    ) -> Result<(), DifferentialError> {
        let Plan { sides, quirks, rng_seed, .. } = self.plan;
        let origin = ReportOrigin { rng_seed: *rng_seed, iteration, recipe, sides };
        let disk = folder.join("disk");
        let as_found = MinimizedRecipe::as_found(recipe, met.clone());
        let report = self.reports.write(origin, &as_found, &disk)?;
        self.name(&report, start)?;
        let deadline = Instant::now().checked_add(MAX_MINIMIZE_TIME);
        let tries = Tries { sides, quirks, folder, deadline };
        let minimized = minimize(recipe, met, tries);
        // The images of the minimized recipe are those of the report. A divergence that does not occur again keeps its
        // first report.
        let again = tries.met(&minimized.recipe).ok().flatten();
        if again.is_some_and(|again| again.fingerprint == report.fingerprint) {
            let report = self.reports.write(origin, &minimized, &disk)?;
            self.name(&report, start)?;
        }
        Ok(())
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
}
