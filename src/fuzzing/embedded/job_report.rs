//! The saved state of a job, as a report: the inputs with their parents, and the worth of each mutation.

use serde::Serialize;

use crate::fuzzing::corpus::name;
use crate::harness::cases::target::Inputs;

use super::credit::MutationWorth;
use super::measures::ParentChange;
use super::state::{CampaignState, Saved};

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
    /// The mutations, the one that is worth most first.
    pub mutations: Vec<MutationWorth>,
}

/// An input, and the children that were bred from it.
#[derive(Debug, Serialize)]
pub struct ParentReport {
    /// The checksum of the content, which is the file's name in the corpus, except for seeds that have another one.
    pub input: String,
    /// The same of the input that it was bred from.
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
    /// The changes of its vitals against its parent when it was kept.
    pub changes: Vec<String>,
}

impl JobReport {
    /// Summarizes the state of a job with these inputs.
    pub fn of(state: &CampaignState, inputs: Inputs) -> Self {
        let entries = state.entries();
        let all: u64 = entries.iter().map(|entry| entry.weight).sum();
        let named = |entry: &Saved| name(&entry.input);
        let changes = |entry: &Saved| {
            let changes = entry.changes.iter().filter_map(|index| ParentChange::at(*index));
            changes.map(|change| change.to_string()).collect()
        };
        let report = |entry: &Saved| ParentReport {
            input: named(entry),
            parent: entry.parent.and_then(|place| entries.get(place)).map(named),
            depth: entry.depth,
            chosen_percent: 100.0 * entry.weight as f64 / all.max(1) as f64,
            children: entry.picks,
            kept: entry.kept,
            barren: entry.barren,
            work: entry.work,
            complexity: entry.complexity,
            changes: changes(entry),
        };
        let mut parents: Vec<_> = entries.iter().map(report).collect();
        parents.sort_by(|one, other| other.chosen_percent.total_cmp(&one.chosen_percent));
        Self {
            runs: state.runs(),
            inputs: entries.len(),
            without_parent: entries.iter().filter(|entry| entry.parent.is_none()).count(),
            greatest_depth: entries.iter().map(|entry| entry.depth).max().unwrap_or(0),
            parents,
            mutations: state.credit().worth(inputs),
        }
    }
}
