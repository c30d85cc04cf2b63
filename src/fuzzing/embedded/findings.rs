//! The findings of a campaign, by fingerprint.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::base::error::Error;
use crate::findings::runner::Finding;
use crate::fuzzing::corpus::Folder;
use crate::harness::MetFinding;
use crate::harness::against::second_opinion::ComparedImages;
use crate::harness::engine::known::MAX_SEEN;
use crate::harness::engine::questions::{QuestionKind, QuestionKinds};

use super::subject::{RunReply, Subject};

/// All findings with one fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFinding {
    /// The number of runs that found it.
    pub times: u64,
    /// The length of the shortest input that shows it, in bytes.
    pub shortest_bytes: usize,
    /// The name of the file with that input, among the artifacts.
    pub file: String,
    /// The place of the violation and the values found there.
    pub detail: String,
}

/// All findings, by fingerprint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFindings {
    /// The number of runs that met each known finding. The name of the field is no fingerprint, and older states lack
    /// it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    known: BTreeMap<String, u64>,
    /// The number of runs that met each fingerprint of a known finding: of at most 32 fingerprints. The name of the
    /// field is no fingerprint, and older states lack it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub seen: BTreeMap<String, BTreeMap<String, u64>>,
    /// The number of runs that were not judged: an image had a feature that the engine does not claim.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unsupported: u64,
    /// The number of images that a second opinion has judged, and of those that it could not judge.
    #[serde(default, skip_serializing_if = "is_none")]
    pub compared: (u64, u64),
    /// The names of the questions to which a second opinion had no answer in some run. Older states lack them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub uncompared: BTreeSet<String>,
    /// The kinds of questions to which the engine had no answer in some run. Older states lack them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unanswered: BTreeSet<String>,
    /// The findings that are new.
    #[serde(flatten)]
    new: BTreeMap<String, SavedFinding>,
}

fn is_none(counts: &(u64, u64)) -> bool {
    *counts == (0, 0)
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl SavedFindings {
    /// Counts a finding. Writes its input to `artifacts` if it is the first or the shortest with its fingerprint. The
    /// file's name is `prefix`, followed by the name that libFuzzer gives the input.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(
        &mut self,
        artifacts: &Folder,
        prefix: &str,
        finding: &Finding,
        input: &[u8],
    ) -> Result<(), Error> {
        let Finding { fingerprint, detail, .. } = finding;
        match self.new.get_mut(fingerprint) {
            Some(found) if found.shortest_bytes <= input.len() => found.times += 1,
            before => {
                let times = 1 + before.map_or(0, |found| found.times);
                let file = artifacts.add(prefix, input)?;
                let (shortest_bytes, detail) = (input.len(), detail.clone());
                let found = SavedFinding { times, shortest_bytes, file, detail };
                self.new.insert(fingerprint.clone(), found);
            }
        }
        Ok(())
    }

    /// Counts a run that met a known finding.
    pub fn add_known(&mut self, met: &MetFinding) {
        self.extend_known(&met.known, 1, met.seen.iter().map(|fingerprint| (&**fingerprint, 1)));
    }

    /// Counts runs that met the known finding `known`, and those of them that met each fingerprint in `seen`.
    fn extend_known<'s>(
        &mut self,
        known: &str,
        times: u64,
        seen: impl Iterator<Item = (&'s str, u64)>,
    ) {
        *self.known.entry(known.to_string()).or_default() += times;
        let all = self.seen.entry(known.to_string()).or_default();
        for (fingerprint, times) in seen {
            if all.len() < MAX_SEEN || all.contains_key(fingerprint) {
                *all.entry(fingerprint.to_string()).or_default() += times;
            }
        }
    }

    /// Returns the number of runs that met the known finding with this fingerprint.
    pub fn times_known(&self, fingerprint: &str) -> u64 {
        self.known.get(fingerprint).copied().unwrap_or(0)
    }

    /// Counts what is known about a run of `subject` beside a new finding.
    pub(crate) fn add_answer(&mut self, subject: &impl Subject, answer: &RunReply) {
        if !matches!(answer, RunReply::Skipped) {
            subject.met().iter().for_each(|met| self.add_known(met));
        }
        if let RunReply::Sound(outcome) = answer {
            self.add_compared(outcome.second);
            self.add_unanswered(outcome.unanswered);
            self.unsupported += u64::from(outcome.unsupported);
        }
    }

    /// Notes the kinds of questions to which the engine had no answer in a run.
    pub fn add_unanswered(&mut self, kinds: QuestionKinds) {
        add_names(&mut self.unanswered, kinds);
    }

    /// Counts the images that a second opinion has judged, or could not judge.
    pub fn add_compared(&mut self, images: ComparedImages) {
        self.compared.0 += images.compared as u64;
        self.compared.1 += images.not_compared as u64;
        add_names(&mut self.uncompared, images.unanswered);
    }

    /// Adds the findings of another job.
    pub fn extend(&mut self, others: &Self) {
        self.unsupported += others.unsupported;
        self.compared.0 += others.compared.0;
        self.compared.1 += others.compared.1;
        self.unanswered.extend(others.unanswered.iter().cloned());
        self.uncompared.extend(others.uncompared.iter().cloned());
        for (known, times) in &others.known {
            let seen = others.seen.get(known).into_iter().flatten();
            self.extend_known(
                known,
                *times,
                seen.map(|(fingerprint, times)| (&**fingerprint, *times)),
            );
        }
        for (fingerprint, found) in &others.new {
            match self.new.get_mut(fingerprint) {
                None => drop(self.new.insert(fingerprint.clone(), found.clone())),
                Some(known) => {
                    let times = known.times + found.times;
                    if found.shortest_bytes < known.shortest_bytes {
                        *known = found.clone();
                    }
                    known.times = times;
                }
            }
        }
    }

    /// Reports whether there are no new findings.
    pub fn is_empty(&self) -> bool {
        self.new.is_empty()
    }

    /// Returns each new fingerprint with its findings, in order of the fingerprints.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &SavedFinding)> {
        self.new.iter().map(|(fingerprint, found)| (fingerprint.as_str(), found))
    }
}

/// Adds the names of questions.
fn add_names(names: &mut BTreeSet<String>, kinds: QuestionKinds) {
    for (name, _) in kinds.iter().map(QuestionKind::oracles) {
        if !names.contains(name) {
            names.insert(name.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(seen: &[&str]) -> MetFinding {
        let seen = seen.iter().map(|fingerprint| fingerprint.to_string()).collect();
        MetFinding { known: "data: *".to_string(), seen }
    }

    #[test]
    fn the_fingerprints_of_all_jobs_are_counted_and_saved() {
        let (mut all, mut other) = (SavedFindings::default(), SavedFindings::default());
        all.add_known(&met(&["data: a", "data: b"]));
        other.add_known(&met(&["data: b"]));
        all.extend(&other);
        assert_eq!(all.times_known("data: *"), 2);
        let seen: BTreeMap<String, u64> =
            [("data: a".to_string(), 1), ("data: b".to_string(), 2)].into();
        assert_eq!(all.seen["data: *"], seen);
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<SavedFindings>(&text).unwrap(), all);
    }

    #[test]
    fn a_known_finding_has_a_bounded_number_of_fingerprints() {
        let mut all = SavedFindings::default();
        for number in 0..2 * MAX_SEEN {
            all.add_known(&met(&[&format!("data: {number}")]));
        }
        all.add_known(&met(&["data: 0"]));
        assert_eq!(all.times_known("data: *"), 2 * MAX_SEEN as u64 + 1);
        assert_eq!((all.seen["data: *"].len(), all.seen["data: *"]["data: 0"]), (MAX_SEEN, 2));
    }
}
