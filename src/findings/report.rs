//! The report of an input: the verdict, the fingerprint, and the evidence.

mod text;

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::harness::cases::target::{Expectation, Inputs};
use crate::harness::targets::TargetKind;
use crate::harness::{Outcome, Pipeline};

use super::evidence::Evidence;
use super::runner::{Ran, Runner, finding_of_two};

/// The verdict on an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No oracle found a violation.
    Ok,
    /// The engine does not support the image, so the harness did not call it.
    Unsupported,
    /// The engine refused to open a file.
    Refused,
    /// The engine opened a file, and its walk failed.
    Failed,
    /// The engine walked a file.
    Walked,
    /// The code under test panicked, and the finding is known.
    #[serde(rename = "known panic")]
    KnownPanic,
    /// An oracle found a violation, the code under test panicked, or two runs differ.
    Violation,
}

impl Verdict {
    /// Returns the verdict of a run without a finding.
    fn of(outcome: &Outcome, inputs: Inputs) -> Self {
        match inputs {
            Inputs::Programs | Inputs::Recipes if outcome.unsupported => Self::Unsupported,
            Inputs::Programs | Inputs::Recipes => Self::Ok,
            Inputs::Files if outcome.refused > 0 => Self::Refused,
            Inputs::Files if outcome.failed > 0 => Self::Failed,
            Inputs::Files => Self::Walked,
        }
    }
}

/// The report of an input. Its fields serialise in this order.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The file with the input.
    pub input: String,
    /// The target that the input is for.
    pub target: TargetKind,
    /// The verdict.
    pub verdict: Verdict,
    /// One line that is the same for every input that shows the same bug.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The place and the values, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The fingerprints of known findings that the run met.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<String>,
    /// The changes that folding made to the program, because the engine does not claim all of its features.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub folded: Vec<String>,
    /// The number of operations of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations: Option<usize>,
    /// The number of operations that had run when the violation was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations_run: Option<usize>,
    /// The number of operations with an effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective: Option<usize>,
    /// The number of images that were verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<usize>,
    /// The number of damaged images that the engine refused to open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<usize>,
    /// The number of damaged images whose walk failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<usize>,
    /// The text of the program, if the input is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The commands of the recipe, if the input chooses one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recipe: Vec<String>,
    /// True if the second run gave the same result as the first.
    #[serde(skip)]
    pub steady: bool,
    /// The evidence.
    #[serde(flatten, skip_serializing_if = "Evidence::is_empty")]
    pub evidence: Evidence,
}

impl Report {
    /// Returns the report of the last run of `runner`, without evidence.
    pub fn new(input: &Path, target: TargetKind, runner: &Runner, ran: &Ran) -> Self {
        let program = runner.pipeline().map(Pipeline::program);
        let mut report = Self {
            input: input.display().to_string(),
            target,
            verdict: Verdict::Violation,
            fingerprint: None,
            detail: None,
            known: runner.met().iter().map(|met| met.known.clone()).collect(),
            folded: Vec::new(),
            operations: program.map(|program| program.operations.len()),
            operations_run: None,
            effective: None,
            images: None,
            refused: None,
            failed: None,
            program: None,
            recipe: runner.recipe_lines(),
            steady: true,
            evidence: Evidence::default(),
        };
        match ran {
            Ran::Sound(outcome) => {
                report.verdict = Verdict::of(outcome, target.definition().inputs);
                if target.runs_programs() {
                    report.effective = Some(outcome.effective);
                    report.images = Some(outcome.images);
                }
                if target.definition().expectation == Expectation::UntouchedExtents {
                    report.refused = Some(outcome.refused);
                    report.failed = Some(outcome.failed);
                }
            }
            Ran::Violation(failure) => {
                let is_file = target.definition().inputs == Inputs::Files;
                report.operations_run = (!is_file).then_some(failure.operations_run);
            }
            Ran::Panic(_) | Ran::KnownPanic(_) => {
                if let Ran::KnownPanic(_) = ran {
                    report.verdict = Verdict::KnownPanic;
                }
                report.operations_run = runner.pipeline().map(Pipeline::operations_run);
            }
        }
        (report.fingerprint, report.detail) =
            ran.finding().map(|it| (it.fingerprint, it.detail)).unzip();
        report
    }

    /// Replaces the finding of the first run by the difference between the two runs.
    pub fn differs(&mut self, first: &Ran, again: &Ran) {
        let found = finding_of_two(first, again);
        (self.verdict, self.steady) = (Verdict::Violation, false);
        (self.fingerprint, self.detail) = found.map(|it| (it.fingerprint, it.detail)).unzip();
    }

    /// Writes the report as one line of JSON.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        out.write_all(b"\n")
    }

    /// Writes one line: the input, and the fingerprint or the verdict.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn line(&self, out: &mut impl Write) -> io::Result<()> {
        let known = match self.known.len() {
            0 => String::new(),
            count => format!("; known findings: {count}"),
        };
        writeln!(out, "{}: {}{known}", self.input, self.judgement())
    }

    /// Returns the fingerprint, or the verdict in words.
    pub fn judgement(&self) -> &str {
        match (&self.fingerprint, self.verdict) {
            (Some(fingerprint), _) => fingerprint,
            (None, Verdict::Unsupported) => "unsupported by the engine",
            (None, Verdict::Refused) => "refused",
            (None, Verdict::Failed) => "walk failed",
            (None, Verdict::Walked) => "walked",
            (None, Verdict::KnownPanic) => "ended by a known panic",
            (None, _) => "ok",
        }
    }

    /// Returns the size of the run in words.
    pub fn course(&self) -> String {
        match (self.operations, self.effective, self.images, self.operations_run) {
            (Some(operations), Some(effective), Some(images), _) => {
                let damaged = match (self.refused, self.failed) {
                    (Some(refused), Some(failed)) => {
                        format!(", of them refused: {refused}, walk failed: {failed}")
                    }
                    _ => String::new(),
                };
                let done = format!("{operations} operations, {effective} with an effect");
                format!("{done}; images verified: {images}{damaged}")
            }
            (Some(operations), .., Some(run)) if self.verdict == Verdict::KnownPanic => {
                format!("ended after {run} of {operations} operations")
            }
            (Some(operations), .., Some(run)) => {
                format!("found after {run} of {operations} operations")
            }
            (Some(operations), ..) => format!("found in a program of {operations} operations"),
            (None, .., Some(run)) => format!("found after {run} steps of the recipe"),
            (None, ..) => match self.verdict {
                Verdict::Ok if !self.recipe.is_empty() => "QEMU carried out the recipe",
                Verdict::Refused => "the file was not opened",
                Verdict::Failed => "the file was opened, and walking it failed",
                Verdict::Walked => "the file was walked to its end, or to the limit of a run",
                Verdict::KnownPanic => "ended in this file",
                Verdict::Ok | Verdict::Unsupported | Verdict::Violation => "found in this file",
            }
            .to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
