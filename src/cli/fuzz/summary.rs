//! What a campaign tells at its end.

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

use qcowfuzz::disk::observer::Rare;
use qcowfuzz::fuzzing::corpus;
use qcowfuzz::fuzzing::embedded::Progress;
use qcowfuzz::fuzzing::feedback::Counter;
use qcowfuzz::fuzzing::feedback::layout::tally;

use crate::cli::exit::Failure;
use qcowfuzz::harness::targets::TargetKind;

use super::places::Places;
use super::supervisor::Finished;

/// The end of a campaign, for people and for machines.
#[derive(Debug, Serialize)]
pub struct Summary {
    target: &'static str,
    jobs: usize,
    runs: u64,
    seconds: f64,
    edges: usize,
    rare_events: usize,
    corpus: String,
    /// Of the corpus.
    inputs: usize,
    found: Vec<Told>,
}

/// What was found with one fingerprint.
#[derive(Debug, Serialize)]
struct Told {
    fingerprint: String,
    times: u64,
    shortest: String,
    bytes: usize,
    detail: String,
}

impl Summary {
    /// Of what has finished.
    pub fn new(
        places: &Places,
        target: TargetKind,
        jobs: usize,
        elapsed: Duration,
        finished: &Finished,
    ) -> Result<Self, Failure> {
        let covered = finished.covered.iter().filter_map(|index| Counter::at(*index));
        let (edges, rare_events) = tally(covered);
        let most =
            |of: fn(&Progress) -> usize| finished.progress.iter().map(of).max().unwrap_or_default();
        let (corpus, artifacts) = (places.corpus()?, places.artifacts()?);
        let told = finished.found.iter().map(|(fingerprint, found)| Told {
            fingerprint: fingerprint.to_string(),
            times: found.times,
            shortest: artifacts.dir().join(&found.file).display().to_string(),
            bytes: found.shortest_bytes,
            detail: found.detail.clone(),
        });
        Ok(Self {
            target: target.name(),
            jobs,
            runs: finished.runs,
            seconds: elapsed.as_secs_f64(),
            // A job that hung at its end has told how much it covers, and not what.
            edges: edges.max(most(|it| it.edges)),
            rare_events: rare_events.max(most(|it| it.rare_events)),
            corpus: corpus.dir().display().to_string(),
            inputs: corpus::files(corpus.dir())?.len(),
            found: told.collect(),
        })
    }

    /// How many bugs were found.
    pub fn found(&self) -> usize {
        self.found.len()
    }

    /// For people.
    pub fn lines(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { target, jobs, runs, seconds, edges, rare_events, corpus, inputs, found } = self;
        let jobs = format!("{jobs} job{}", if *jobs == 1 { "" } else { "s" });
        writeln!(out, "{target}: {runs} runs in {seconds:.1} s, {jobs}")?;
        let rare = format!("{rare_events} of {} rare events", Rare::COUNT);
        writeln!(out, "{corpus}: {inputs} inputs; covered: {edges} edges, {rare}")?;
        if found.is_empty() {
            return writeln!(out, "found: nothing");
        }
        for Told { fingerprint, times, shortest, bytes, detail } in found {
            let times = if *times == 1 { "once".to_string() } else { format!("{times} times") };
            writeln!(out, "\n{fingerprint}\n  {times}; {bytes} bytes: {shortest}")?;
            detail.lines().try_for_each(|line| writeln!(out, "  {line}"))?;
        }
        writeln!(out, "\n'qcowfuzz replay --target {target} FILE' tells more")
    }
}
