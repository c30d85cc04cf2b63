//! The saved state of a campaign, in one file, and its report. A campaign that is resumed from it does the same steps
//! as one that was never interrupted. For each input, the file contains only the name of its coverage. So the loop runs
//! the input again to get the coverage. If the build is the same, the loop compares the name of this coverage with the
//! saved name.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::base::error::Error;
use crate::base::files;
use crate::fuzzing::corpus::{Folder, name};
use crate::images::content::entropy::Entropy;

use super::scheduler::{Testcase, coverage_name};
use super::{FuzzSettings, Fuzzer, RunReply, SavedFindings, Subject, not_the_same};

/// The saved state of a campaign.
#[derive(Debug, Serialize, Deserialize)]
pub struct CampaignState {
    build: String,
    rng_seed: u64,
    runs: u64,
    entropy: u64,
    found: SavedFindings,
    entries: Vec<Testcase>,
}

impl CampaignState {
    /// Reads the state from the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read, or does not contain the state of a campaign.
    pub fn read(path: &Path) -> Result<Self, Error> {
        serde_json::from_slice(&files::read(path, u64::MAX)?).map_err(|error| {
            let what = format!("not the state of a campaign: {error}, expected one, or --restart");
            Error::State { path: path.to_path_buf(), what }
        })
    }

    /// Returns the seed with which the campaign began.
    pub fn rng_seed(&self) -> u64 {
        self.rng_seed
    }

    /// Removes all findings from the state.
    pub fn forget_findings(&mut self) {
        self.found = SavedFindings::default();
    }

    /// Returns the number of children that were run.
    pub fn runs(&self) -> u64 {
        self.runs
    }
}

impl<S: Subject> Fuzzer<S> {
    /// Saves a campaign in a file; `scratch` is a folder of the same file system.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path, scratch: &Path) -> Result<(), Error> {
        let state = CampaignState {
            build: self.settings.build.clone(),
            rng_seed: self.settings.rng_seed,
            runs: self.runs,
            entropy: self.entropy.state(),
            found: self.found.clone(),
            entries: self.scheduler.entries().to_vec(),
        };
        let bytes = serde_json::to_vec(&state).map_err(|error| Error::file(path, error.into()))?;
        files::replace(path, scratch, &bytes)
    }

    /// Resumes a campaign. Does not read files that were added to the corpus since the state was saved.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn resume(
        subject: S,
        settings: FuzzSettings,
        corpus: Folder,
        artifacts: Folder,
        state: CampaignState,
    ) -> Result<Self, Error> {
        let same_build = state.build == settings.build;
        let settings = FuzzSettings { rng_seed: state.rng_seed, ..settings };
        let mut fuzzer = Self::without_inputs(subject, settings, corpus, artifacts);
        for entry in state.entries {
            fuzzer.restore(entry, same_build)?;
        }
        fuzzer.runs = state.runs;
        fuzzer.entropy = Entropy::new(state.entropy);
        fuzzer.found.extend(&state.found);
        Ok(fuzzer)
    }

    /// Runs a saved input again, compares its coverage with the saved name, and adds it to the scheduler.
    fn restore(&mut self, saved: Testcase, same_build: bool) -> Result<(), Error> {
        let answer = self.run(&saved.input);
        let features = std::mem::take(&mut self.features);
        let coverage = coverage_name(&features);
        let sound = matches!(answer, RunReply::Sound(_));
        if let RunReply::Found(finding) = &answer {
            self.record(finding, &saved.input)?;
        } else if sound && !answer.varies() && same_build && coverage != saved.coverage {
            self.record(&not_the_same("counters"), &saved.input)?;
        }
        let measures = self.measures;
        self.scheduler.restore(Testcase { sound, features, coverage, measures, ..saved });
        Ok(())
    }
}

/// The state of a job, for people and scripts.
#[derive(Debug, Serialize)]
pub struct JobReport {
    /// The number of children that were run.
    pub runs: u64,
    /// The number of inputs that are kept.
    pub inputs: usize,
    /// The number of inputs without a parent: those that the campaign has read.
    pub without_parent: usize,
    /// The highest number of ancestors.
    pub greatest_depth: u32,
    /// The inputs, the one that is chosen most often first.
    pub parents: Vec<ParentReport>,
}

/// An input, and its children.
#[derive(Debug, Serialize)]
pub struct ParentReport {
    /// The checksum of its content. It is also the name of its file in the corpus, unless the input is a seed with
    /// another name.
    pub input: String,
    /// The checksum of the content of its parent, if it has one.
    pub parent: Option<String>,
    /// The number of its ancestors.
    pub depth: u32,
    /// The share of all choices of a parent that fall on this input, in percent.
    pub chosen_percent: f64,
    /// The number of its children.
    pub children: u32,
    /// The number of those that were kept.
    pub kept: u32,
    /// The number of children since the last one that was kept.
    pub barren: u32,
    /// The work of its run.
    pub work: u64,
    /// The complexity of its image.
    pub complexity: u32,
}

impl JobReport {
    /// Summarizes the state of a job.
    pub fn of(state: &CampaignState) -> Self {
        let entries = &state.entries;
        let all: u64 = entries.iter().map(|entry| entry.weight).sum();
        let named = |entry: &Testcase| name(&entry.input);
        let report = |entry: &Testcase| ParentReport {
            input: named(entry),
            parent: entry.parent.and_then(|place| entries.get(place)).map(named),
            depth: entry.depth,
            chosen_percent: 100.0 * entry.weight as f64 / all.max(1) as f64,
            children: entry.picks,
            kept: entry.kept,
            barren: entry.barren,
            work: entry.measures.work,
            complexity: entry.measures.complexity,
        };
        let mut parents: Vec<_> = entries.iter().map(report).collect();
        parents.sort_by(|one, other| other.chosen_percent.total_cmp(&one.chosen_percent));
        Self {
            runs: state.runs(),
            inputs: entries.len(),
            without_parent: entries.iter().filter(|entry| entry.parent.is_none()).count(),
            greatest_depth: entries.iter().map(|entry| entry.depth).max().unwrap_or(0),
            parents,
        }
    }
}
