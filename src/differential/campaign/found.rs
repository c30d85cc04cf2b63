//! The reports of new divergences. Minimizing one may take minutes, in which the campaign may be killed. So the
//! campaign writes the report of the divergence as it was found, then names it in the summary, and replaces the report
//! at the end.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::base::error::Error;
use crate::differential::iteration::{DISK_FOLDER, Met};
use crate::differential::minimize::{MinimizedRecipe, Tries, minimize};
use crate::differential::reports::{DivergenceReport, ReportOrigin, Reports};
use crate::harness::KnownFindings;

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
    pub(super) fn take(&mut self, fingerprint: &str) -> u64 {
        self.0.remove(fingerprint).unwrap_or(1)
    }
}

/// A divergence that an iteration met for the first time.
pub(super) struct NewDivergence<'n> {
    /// The iteration.
    pub(super) origin: ReportOrigin<'n>,
    /// The divergence.
    pub(super) met: Met,
    /// The divergences that are known.
    pub(super) known: &'n KnownFindings,
    /// The folder of the job that met it.
    pub(super) folder: &'n Path,
}

impl NewDivergence<'_> {
    /// Writes the report of the divergence as the iteration met it.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub(super) fn report(&self, reports: &Reports) -> Result<DivergenceReport, Error> {
        let as_found = MinimizedRecipe::as_found(self.origin.recipe, self.met.clone());
        reports.write(self.origin, &as_found, &self.folder.join(DISK_FOLDER))
    }

    /// Minimizes the divergence, and replaces its report. Returns `None` if the divergence does not occur again: it
    /// keeps its first report.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub(super) fn minimize(self, reports: &Reports) -> Result<Option<DivergenceReport>, Error> {
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
