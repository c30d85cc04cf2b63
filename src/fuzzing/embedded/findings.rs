//! The findings of a campaign, by fingerprint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::disk::error::Error;
use crate::fuzzing::corpus::Folder;

use crate::findings::runner::Finding;

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
pub struct SavedFindings(BTreeMap<String, SavedFinding>);

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
        match self.0.get_mut(fingerprint) {
            Some(found) if found.shortest_bytes <= input.len() => found.times += 1,
            before => {
                let times = 1 + before.map_or(0, |found| found.times);
                let file = artifacts.add(prefix, input)?;
                let (shortest_bytes, detail) = (input.len(), detail.clone());
                let found = SavedFinding { times, shortest_bytes, file, detail };
                self.0.insert(fingerprint.clone(), found);
            }
        }
        Ok(())
    }

    /// Adds the findings of another job.
    pub fn extend(&mut self, others: &Self) {
        for (fingerprint, found) in &others.0 {
            match self.0.get_mut(fingerprint) {
                None => drop(self.0.insert(fingerprint.clone(), found.clone())),
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

    /// Reports whether there are no findings.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of fingerprints.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns each fingerprint with its findings, in order of the fingerprints.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &SavedFinding)> {
        self.0.iter().map(|(fingerprint, found)| (fingerprint.as_str(), found))
    }
}
