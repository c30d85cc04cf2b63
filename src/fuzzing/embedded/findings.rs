//! The findings of a campaign, by fingerprint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::disk::error::Error;
use crate::fuzzing::corpus::Folder;

use crate::findings::runner::Finding;
use crate::harness::second_opinion::ComparedImages;

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
    /// The number of runs that were not judged: an image had a feature that the engine does not claim.
    #[serde(default, skip_serializing_if = "is_zero")]
    unsupported: u64,
    /// The number of images that a second opinion has judged, and of those that it could not judge.
    #[serde(default, skip_serializing_if = "is_none")]
    compared: (u64, u64),
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
        let Finding { fingerprint, detail } = finding;
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

    /// Counts a run that met the known finding with this fingerprint.
    pub fn add_known(&mut self, fingerprint: &str) {
        match self.known.get_mut(fingerprint) {
            Some(times) => *times += 1,
            None => drop(self.known.insert(fingerprint.to_string(), 1)),
        }
    }

    /// Returns the number of runs that met the known finding with this fingerprint.
    pub fn times_known(&self, fingerprint: &str) -> u64 {
        self.known.get(fingerprint).copied().unwrap_or(0)
    }

    /// Counts a run that was not judged.
    pub fn add_unsupported(&mut self) {
        self.unsupported += 1;
    }

    /// Returns the number of runs that were not judged, because an image had a feature that the engine does not claim.
    pub fn unsupported(&self) -> u64 {
        self.unsupported
    }

    /// Counts the images that a second opinion has judged, or could not judge.
    pub fn add_compared(&mut self, images: ComparedImages) {
        self.compared.0 += images.compared as u64;
        self.compared.1 += images.not_compared as u64;
    }

    /// Returns the number of images that a second opinion has judged, and of those that it could not judge.
    pub fn compared(&self) -> (u64, u64) {
        self.compared
    }

    /// Adds the findings of another job.
    pub fn extend(&mut self, others: &Self) {
        self.unsupported += others.unsupported;
        self.compared.0 += others.compared.0;
        self.compared.1 += others.compared.1;
        for (fingerprint, times) in &others.known {
            *self.known.entry(fingerprint.clone()).or_default() += times;
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

    /// Returns the number of new fingerprints.
    pub fn len(&self) -> usize {
        self.new.len()
    }

    /// Returns each new fingerprint with its findings, in order of the fingerprints.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &SavedFinding)> {
        self.new.iter().map(|(fingerprint, found)| (fingerprint.as_str(), found))
    }
}
