//! A campaign as a file: whoever goes on from it does what would have been done. It needs no other file. What
//! follows from the inputs is worked out anew, and held against what is saved where the code is the same.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::disk::error::Error;
use crate::disk::files;
use crate::fuzzing::corpus::Folder;
use crate::images::entropy::Entropy;

use super::credit::Credit;
use super::pool::Entry;
use super::scoring::{Lineage, Watermarks};
use super::{Answer, Findings, Fuzzer, Settings, Subject, coverage_name, not_the_same};

/// What is saved.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    build: String,
    rng_seed: u64,
    runs: u64,
    entropy: u64,
    credit: Credit,
    found: Findings,
    entries: Vec<Saved>,
}

/// An [`Entry`], without what follows from its bytes.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    #[serde(with = "hex::serde")]
    input: Vec<u8>,
    coverage: String,
    parent: Option<usize>,
    depth: u32,
    picks: u32,
    kept: u32,
    barren: u32,
    watermarks: Watermarks,
    weight: u64,
}

impl State {
    /// Reads what was saved.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn read(path: &Path) -> Result<Self, Error> {
        serde_json::from_slice(&files::read(path, u64::MAX)?).map_err(|error| {
            let what = format!("not the state of a campaign: {error}, expected one, or --restart");
            Error::State { path: path.to_path_buf(), what }
        })
    }

    /// With which the campaign began.
    pub fn rng_seed(&self) -> u64 {
        self.rng_seed
    }

    /// What is found from here on is found anew.
    pub fn forget_findings(&mut self) {
        self.found = Findings::default();
    }

    /// How many children were run.
    pub fn runs(&self) -> u64 {
        self.runs
    }
}

impl<S: Subject> Fuzzer<S> {
    /// Saves a campaign in a file; `scratch` is a folder of the same file system.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, path: &Path, scratch: &Path) -> Result<(), Error> {
        let saved = |entry: &Entry| Saved {
            input: entry.input.clone(),
            coverage: coverage_name(&entry.features),
            parent: entry.parent,
            depth: entry.depth,
            picks: entry.picks,
            kept: entry.kept,
            barren: entry.barren,
            watermarks: entry.watermarks,
            weight: entry.weight,
        };
        let state = State {
            build: self.settings.build.clone(),
            rng_seed: self.settings.rng_seed,
            runs: self.runs,
            entropy: self.entropy.state(),
            credit: self.credit.clone(),
            found: self.found.clone(),
            entries: self.pool.entries().iter().map(saved).collect(),
        };
        let bytes = serde_json::to_vec(&state).map_err(|error| Error::file(path, error.into()))?;
        files::replace(path, scratch, &bytes)
    }

    /// Goes on with a campaign. What is new in the corpus is not looked at.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn resume(
        subject: S,
        settings: Settings,
        corpus: Folder,
        artifacts: Folder,
        state: State,
    ) -> Result<Self, Error> {
        let same_build = state.build == settings.build;
        let settings = Settings { rng_seed: state.rng_seed, ..settings };
        let mut fuzzer = Self::empty(subject, settings, corpus, artifacts);
        for saved in state.entries {
            fuzzer.restore(saved, same_build)?;
        }
        fuzzer.runs = state.runs;
        fuzzer.entropy = Entropy::new(state.entropy);
        fuzzer.credit = state.credit;
        fuzzer.found.extend(&state.found);
        Ok(fuzzer)
    }

    /// Runs an entry again, and holds what it covers against what it did.
    fn restore(&mut self, saved: Saved, same_build: bool) -> Result<(), Error> {
        let Saved { input, coverage, parent, depth, picks, kept, barren, watermarks, weight } =
            saved;
        let answer = self.run(&input);
        let sound = matches!(answer, Answer::Sound(_));
        if let Answer::Found(finding) = &answer {
            self.record(finding, &input)?;
        } else if sound && same_build && coverage_name(&self.features) != coverage {
            self.record(&not_the_same("counters"), &input)?;
        }
        let features = std::mem::take(&mut self.features);
        let from = parent.and_then(|place| self.pool.entries().get(place));
        let lineage = Lineage::of(from.map(|parent| &parent.lineage), &features);
        let entry = Entry {
            input,
            sound,
            parent,
            depth,
            picks,
            kept,
            barren,
            watermarks,
            weight,
            features,
            lineage,
        };
        self.remember(&entry);
        self.pool.restore(entry);
        Ok(())
    }
}
