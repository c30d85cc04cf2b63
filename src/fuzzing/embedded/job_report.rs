//! The saved state of a job, as a report: the inputs with their parents, and the worth of each mutation.

use serde::Serialize;

use crate::fuzzing::corpus::name;
use crate::fuzzing::mutators::MUTATIONS;

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
    pub mutations: Vec<MutationReport>,
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
}

/// The worth of a mutation.
#[derive(Debug, Serialize)]
pub struct MutationReport {
    /// The name.
    pub mutation: &'static str,
    /// The share of all choices of a mutation that fall on this one, in percent.
    pub chosen_percent: f64,
    /// The number of children that it helped to breed. Older children count less.
    pub children: u64,
    /// The number of those that were kept. Older ones count less, so this has a fraction.
    pub kept: f64,
    /// The factor by which its children change its weight, from 0.25 to 4.
    pub credit: f64,
}

impl JobReport {
    /// Summarizes the state of a job.
    pub fn of(state: &CampaignState) -> Self {
        let entries = state.entries();
        let all: u64 = entries.iter().map(|entry| entry.weight).sum();
        let named = |entry: &Saved| name(&entry.input);
        let report = |entry: &Saved| ParentReport {
            input: named(entry),
            parent: entry.parent.and_then(|place| entries.get(place)).map(named),
            depth: entry.depth,
            chosen_percent: percent(entry.weight, all),
            children: entry.picks,
            kept: entry.kept,
            barren: entry.barren,
        };
        let mut parents: Vec<_> = entries.iter().map(report).collect();
        parents.sort_by(|one, other| other.chosen_percent.total_cmp(&one.chosen_percent));
        Self {
            runs: state.runs(),
            inputs: entries.len(),
            without_parent: entries.iter().filter(|entry| entry.parent.is_none()).count(),
            greatest_depth: entries.iter().map(|entry| entry.depth).max().unwrap_or(0),
            parents,
            mutations: mutations(state),
        }
    }
}

fn mutations(state: &CampaignState) -> Vec<MutationReport> {
    let weights = state.credit().weights();
    let all = weights.iter().sum();
    let report = |(place, weight): (usize, u64)| {
        let worth = state.credit().worth(place);
        MutationReport {
            mutation: MUTATIONS[place].name,
            chosen_percent: percent(weight, all),
            children: worth.children,
            kept: worth.kept,
            credit: worth.credit,
        }
    };
    let mut mutations: Vec<_> = weights.into_iter().enumerate().map(report).collect();
    mutations.sort_by(|one, other| other.credit.total_cmp(&one.credit));
    mutations
}

fn percent(part: u64, all: u64) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}
