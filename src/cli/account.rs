//! What is told of one input: the judgement, and what explains it.

mod whole;

use std::io::{self, Write};
use std::path::Path;

use serde::{Serialize, Serializer};

use qcowfuzz::disk::observer::Observer;
use qcowfuzz::harness::target::{Expectation, Inputs};
use qcowfuzz::harness::{Outcome, Pipeline};

use super::evidence::Evidence;
use qcowfuzz::findings::runner::{Finding, Ran, Runner};
use qcowfuzz::harness::targets::TargetKind;

/// The judgement in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing was found.
    Ok,
    /// The engine does not support the image, and was asked nothing.
    Unsupported,
    /// A file was not opened.
    Refused,
    /// A file was opened, and walking it failed somewhere.
    Failed,
    /// A file was walked.
    Walked,
    /// A bug was found.
    Violation,
}

impl Verdict {
    /// Returns the verdict of a run without a finding.
    fn of(outcome: &Outcome, inputs: Inputs) -> Self {
        match inputs {
            Inputs::Programs if outcome.unsupported => Self::Unsupported,
            Inputs::Programs => Self::Ok,
            Inputs::Files if outcome.refused > 0 => Self::Refused,
            Inputs::Files if outcome.failed > 0 => Self::Failed,
            Inputs::Files => Self::Walked,
        }
    }
}

/// Serialises a target by its name.
fn target_name<S: Serializer>(target: &TargetKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(target.name())
}

/// All that is told of one input, in the order in which it is told.
#[derive(Debug, Serialize)]
pub struct Account {
    /// The file.
    pub input: String,
    /// What it is for.
    #[serde(serialize_with = "target_name")]
    pub target: TargetKind,
    /// The judgement.
    pub verdict: Verdict,
    /// The one line that is the same for the same bug.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Where, and with which values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// How many operations the program has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations: Option<usize>,
    /// After how many of them the violation was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations_run: Option<usize>,
    /// How many of them had an effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective: Option<usize>,
    /// How many images were verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<usize>,
    /// How many of these were not opened, where they are damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<usize>,
    /// How many were opened and not walked to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<usize>,
    /// The program's text, where the input is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// It came to the same when it was run again.
    #[serde(skip)]
    pub steady: bool,
    /// What explains it.
    #[serde(flatten, skip_serializing_if = "Evidence::is_empty")]
    pub evidence: Evidence,
}

impl Account {
    /// What the last run of `runner` came to, without what explains it.
    pub fn new(
        input: &Path,
        target: TargetKind,
        runner: &Runner<impl Observer + Clone + 'static>,
        ran: &Ran,
    ) -> Self {
        let program = runner.pipeline().map(Pipeline::program);
        let mut account = Self {
            input: input.display().to_string(),
            target,
            verdict: Verdict::Violation,
            fingerprint: None,
            detail: None,
            operations: program.map(|program| program.operations.len()),
            operations_run: None,
            effective: None,
            images: None,
            refused: None,
            failed: None,
            program: None,
            steady: true,
            evidence: Evidence::default(),
        };
        match ran {
            Ran::Sound(outcome) => {
                account.verdict = Verdict::of(outcome, target.definition().inputs);
                if target.runs_programs() {
                    account.effective = Some(outcome.effective);
                    account.images = Some(outcome.images);
                }
                if target.definition().expectation == Expectation::UntouchedExtents {
                    account.refused = Some(outcome.refused);
                    account.failed = Some(outcome.failed);
                }
            }
            Ran::Violation(failure) => {
                account.operations_run = program.map(|_| failure.operations_run);
            }
            Ran::Panic(_) => {
                account.operations_run = runner.pipeline().map(Pipeline::operations_run);
            }
        }
        (account.fingerprint, account.detail) =
            ran.finding().map(|it| (it.fingerprint, it.detail)).unzip();
        account
    }

    /// The same input came to something else when it was run again.
    pub fn differs(&mut self, again: &Ran) {
        let described = |finding: Option<Finding>| {
            finding.map_or("nothing".to_string(), |Finding { fingerprint, detail }| {
                format!("{fingerprint} ({detail})")
            })
        };
        let first = self.fingerprint.take().zip(self.detail.take());
        let first = first.map(|(fingerprint, detail)| Finding { fingerprint, detail });
        let (first, again) = (described(first), described(again.finding()));
        (self.verdict, self.steady) = (Verdict::Violation, false);
        self.fingerprint = Some("determinism: run, the same → others".to_string());
        self.detail = Some(format!("found first: {first}; found when it was run again: {again}"));
    }

    /// One line of JSON.
    pub fn json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        out.write_all(b"\n")
    }

    /// One line: the input, and the judgement or the fingerprint.
    pub fn line(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}: {}", self.input, self.judgement())
    }

    /// The fingerprint, or why there is none.
    pub fn judgement(&self) -> &str {
        match (&self.fingerprint, self.verdict) {
            (Some(fingerprint), _) => fingerprint,
            (None, Verdict::Unsupported) => "unsupported by the engine",
            (None, Verdict::Refused) => "refused",
            (None, Verdict::Failed) => "walk failed",
            (None, Verdict::Walked) => "walked",
            (None, _) => "ok",
        }
    }

    /// What the run came to, beside the judgement.
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
            (Some(operations), .., Some(run)) => {
                format!("found after {run} of {operations} operations")
            }
            (Some(operations), ..) => format!("found in a program of {operations} operations"),
            (None, ..) => match self.verdict {
                Verdict::Refused => "the file was not opened",
                Verdict::Failed => "the file was opened, and walking it failed",
                Verdict::Walked => "the file was walked to its end, or as far as a run goes",
                Verdict::Ok | Verdict::Unsupported | Verdict::Violation => "found in this file",
            }
            .to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
