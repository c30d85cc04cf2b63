//! The summary of a campaign.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::cpu::CpuSeconds;
use super::distribution::Distribution;
use super::iteration::Course;
use super::known::{cause_of, reason_of};
use super::reports::{DivergenceReport, ReportOrigin, describe_known};
use crate::harness::KnownFindings;

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
    /// Iterations a second.
    pub rate: f64,
    /// The CPU time, also that of minimizing divergences.
    pub cpu_seconds: CpuSeconds,
    /// The share of the CPU time that QEMU's processes took, from 0 to 1.
    pub qemu_share: f64,
    /// The number of iterations that failed: a process could not be started, or a file could not be read or written.
    pub failed: u64,
    /// The new divergences, by fingerprint.
    pub found: BTreeMap<String, FoundDivergence>,
    /// The known divergences that occurred, by the fingerprint in the list.
    pub known: BTreeMap<String, KnownDivergence>,
    /// The shares of the iterations.
    pub distribution: Distribution,
}

impl Summary {
    /// Counts the known divergences of an iteration.
    pub(super) fn count_known(
        &mut self,
        origin: ReportOrigin<'_>,
        known: &KnownFindings,
        course: &Course,
    ) {
        for (fingerprint, met) in &course.known {
            let times = self.known.get(fingerprint).map_or(0, |counted| counted.times);
            if times == 0
                && let Some(finding) = known.iter().find(|it| it.fingerprint == *fingerprint)
            {
                let reason = reason_of(cause_of(known, finding));
                let (commands, issue) = describe_known(origin, met, reason);
                let iteration = origin.iteration;
                let first = KnownDivergence { times, iteration, commands, issue };
                self.known.insert(fingerprint.clone(), first);
            }
            if let Some(counted) = self.known.get_mut(fingerprint) {
                counted.times = counted.times.saturating_add(1);
            }
        }
    }

    /// Computes the rates, after this time and CPU time.
    pub fn measure(&mut self, elapsed: Duration, cpu: CpuSeconds) {
        self.seconds = elapsed.as_secs_f64();
        self.rate = self.distribution.iterations as f64 / self.seconds.max(1e-3);
        self.cpu_seconds = cpu;
        let [(_, qemu_share), ..] = cpu.shares();
        self.qemu_share = qemu_share;
    }
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

impl FoundDivergence {
    /// Returns the divergence of a report, which this many iterations met.
    pub fn of(report: &DivergenceReport, times: u64) -> Self {
        Self {
            times,
            iteration: report.iteration,
            detail: report.detail.clone(),
            commands: report.commands.clone(),
            folder: report.folder.clone(),
        }
    }
}
