//! The result of a campaign, and its summary.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use crate::base::error::Error;
use crate::base::files;
use crate::fuzzing::embedded::{FuzzProgress, SavedFindings};
use crate::fuzzing::feedback::Counter;
use crate::fuzzing::feedback::layout::tally;
use crate::harness::engine::questions::QuestionKind;
use crate::harness::targets::TargetKind;

use super::exhaustive::Judged;
use super::plan::CampaignPlan;
use super::run_times::SlowFeature;

/// The result of a campaign.
#[derive(Debug, Default)]
pub struct Finished {
    /// The number of runs, without those of earlier campaigns.
    pub runs: u64,
    /// The findings.
    pub found: SavedFindings,
    /// The indices of the counters that the jobs cover. A job that ended early is not included.
    pub covered: BTreeSet<usize>,
    /// The progress of each job.
    pub progress: Vec<FuzzProgress>,
    /// The programs and runs that an exhaustive search has judged.
    pub judged: Option<Judged>,
    /// The feature that slows the engine most, if one does.
    pub slow: Option<SlowFeature>,
    /// The reason why a job could not go on.
    pub failure: Option<String>,
}

/// The summary of a campaign that has ended.
#[derive(Debug, Serialize)]
pub struct CampaignSummary {
    /// The target.
    pub target: TargetKind,
    /// The number of jobs.
    pub jobs: usize,
    /// The number of runs.
    pub runs: u64,
    /// The duration.
    pub seconds: f64,
    /// The number of runs that were not judged: an image had a feature that the implementation does not claim.
    pub unsupported: u64,
    /// The kinds of questions to which the engine had no answer in some run.
    pub unanswered: Vec<UnansweredQuestion>,
    /// The number of images that a second opinion has judged.
    pub compared: u64,
    /// The number of images that it could not judge.
    pub not_compared: u64,
    /// The questions about which nothing was compared in some run, because the second opinion has no answers.
    pub uncompared: Vec<&'static str>,
    /// The programs and runs that an exhaustive search has judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judged: Option<Judged>,
    /// The feature that slows the engine most, if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow: Option<SlowFeature>,
    /// The number of edges that the corpus covers.
    pub edges: usize,
    /// The number of rare events that the corpus covers.
    pub rare_events: usize,
    /// The folder of the corpus.
    pub corpus: String,
    /// The number of inputs in the corpus.
    pub inputs: usize,
    /// The bugs that are new.
    pub found: Vec<FoundBug>,
    /// The known findings.
    pub known: Vec<KnownBug>,
}

/// A kind of question to which an engine had no answer.
#[derive(Debug, Serialize)]
pub struct UnansweredQuestion {
    /// The name of the question.
    pub question: &'static str,
    /// The oracles that judge only answers to it.
    pub idle_oracles: &'static str,
}

/// A known finding, and how often it occurred.
#[derive(Debug, Serialize)]
pub struct KnownBug {
    /// The fingerprint.
    pub fingerprint: String,
    /// The number of runs that met it. 0 means that it did not occur.
    pub times: u64,
    /// The fingerprints of these runs that belong to it, at most 32. They differ from its own where that has a `*`.
    pub seen: Vec<SeenFingerprint>,
    /// Why the finding is a bug, or why it is set aside.
    pub reason: String,
    /// The address of the report to the implementation, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

/// A fingerprint that belongs to a known finding, and how often it occurred.
#[derive(Debug, Serialize)]
pub struct SeenFingerprint {
    /// The fingerprint.
    pub fingerprint: String,
    /// The number of runs that met it.
    pub times: u64,
}

/// All findings with one fingerprint.
#[derive(Debug, Serialize)]
pub struct FoundBug {
    /// The fingerprint.
    pub fingerprint: String,
    /// The number of runs that found it.
    pub times: u64,
    /// The file with the shortest input.
    pub shortest: String,
    /// The length of that input.
    pub bytes: usize,
    /// The place of the violation and the values found there.
    pub detail: String,
}

impl CampaignSummary {
    /// Returns the summary of a campaign that took the time `elapsed`.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn new(plan: &CampaignPlan, elapsed: Duration, finished: &Finished) -> Result<Self, Error> {
        let CampaignPlan { places, target, jobs, .. } = plan;
        let covered = finished.covered.iter().filter_map(|index| Counter::at(*index));
        let (edges, rare_events) = tally(covered);
        let most = |of: fn(&FuzzProgress) -> usize| {
            finished.progress.iter().map(of).max().unwrap_or_default()
        };
        let (corpus, artifacts) = (places.corpus()?, places.artifacts()?);
        let found = finished.found.iter().map(|(fingerprint, found)| FoundBug {
            fingerprint: fingerprint.to_string(),
            times: found.times,
            shortest: artifacts.dir().join(&found.file).display().to_string(),
            bytes: found.shortest_bytes,
            detail: found.detail.clone(),
        });
        let seen = |(fingerprint, times): (&String, &u64)| SeenFingerprint {
            fingerprint: fingerprint.clone(),
            times: *times,
        };
        let all = &finished.found;
        let known = plan.known.iter().map(|finding| KnownBug {
            fingerprint: finding.fingerprint.clone(),
            times: all.times_known(&finding.fingerprint),
            seen: all.seen.get(&finding.fingerprint).into_iter().flatten().map(seen).collect(),
            reason: finding.reason.clone(),
            link: finding.link.clone(),
        });
        let questions = QuestionKind::ALL.map(QuestionKind::oracles).into_iter();
        let unanswered = questions.clone().filter(|(name, _)| all.unanswered.contains(*name));
        let unanswered = unanswered
            .map(|(question, idle_oracles)| UnansweredQuestion { question, idle_oracles });
        let uncompared = questions.map(|(name, _)| name);
        Ok(Self {
            target: *target,
            jobs: *jobs,
            runs: finished.runs,
            unsupported: all.unsupported,
            unanswered: unanswered.collect(),
            compared: all.compared.0,
            not_compared: all.compared.1,
            uncompared: uncompared.filter(|name| all.uncompared.contains(*name)).collect(),
            seconds: elapsed.as_secs_f64(),
            judged: finished.judged,
            slow: finished.slow,
            // A job that hung at its end has reported the number of covered edges, but not which ones.
            edges: edges.max(most(|it| it.edges)),
            rare_events: rare_events.max(most(|it| it.rare_events)),
            corpus: corpus.dir().display().to_string(),
            inputs: files::list(corpus.dir())?.len(),
            found: found.collect(),
            known: known.collect(),
        })
    }
}
