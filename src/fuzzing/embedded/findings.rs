//! What was found, bug by bug.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::disk::error::Error;
use crate::fuzzing::corpus::Folder;

use crate::findings::runner::Finding;

/// All that was found with one fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// How many runs found it.
    pub times: u64,
    /// The shortest input that did, in bytes, and the file that it is in.
    pub shortest_bytes: usize,
    /// The file's name, among the artifacts.
    pub file: String,
    /// Where, and with which values.
    pub detail: String,
}

/// All that was found, by fingerprint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings(BTreeMap<String, Found>);

impl Findings {
    /// Counts a finding, and writes its input to `artifacts`, where it is the first of its fingerprint or shorter
    /// than those before. The file is called `prefix` and what libFuzzer calls the input.
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
                let found = Found { times, shortest_bytes, file, detail };
                self.0.insert(fingerprint.clone(), found);
            }
        }
        Ok(())
    }

    /// Adds what somebody else has found.
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

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bugs were.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Each fingerprint, in order, and what was found with it.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Found)> {
        self.0.iter().map(|(fingerprint, found)| (fingerprint.as_str(), found))
    }
}
