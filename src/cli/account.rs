//! What is told of one input: the judgement, and what explains it.

mod whole;

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use qcowfuzz::disk::observer::Observer;
use qcowfuzz::harness::oracles::raw::RawOutcome;

use super::evidence::Evidence;
use super::runner::{Found, Runner, Target};

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

/// All that is told of one input, in the order in which it is told.
#[derive(Debug, Serialize)]
pub struct Account {
    /// The file.
    pub input: String,
    /// What it is for.
    pub target: &'static str,
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
        target: Target,
        runner: &Runner<impl Observer + Clone>,
        found: &Found,
    ) -> Self {
        let program = runner.program();
        let mut account = Self {
            input: input.display().to_string(),
            target: target.name(),
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
        match found {
            Found::Nothing(outcome) => {
                account.verdict =
                    if outcome.unsupported { Verdict::Unsupported } else { Verdict::Ok };
                account.effective = Some(outcome.effective);
                account.images = Some(outcome.images);
                if target == Target::Hostile {
                    account.refused = Some(outcome.refused);
                    account.failed = Some(outcome.failed);
                }
            }
            Found::File(outcome) => {
                account.verdict = match outcome {
                    RawOutcome::Refused => Verdict::Refused,
                    RawOutcome::Failed => Verdict::Failed,
                    RawOutcome::Walked => Verdict::Walked,
                }
            }
            Found::Failure(failure) => account.operations_run = Some(failure.operations_run),
            Found::Panic(_) => {
                account.operations_run = program.map(|_| runner.operations_run());
            }
            Found::Violation(_) => {}
        }
        (account.fingerprint, account.detail) = found.finding().unzip();
        account
    }

    /// The same input came to something else when it was run again.
    pub fn differs(&mut self, again: &Found) {
        let told = |finding: Option<(String, String)>| {
            finding.map_or("nothing".to_string(), |(fingerprint, detail)| {
                format!("{fingerprint} ({detail})")
            })
        };
        let first = self.fingerprint.take().zip(self.detail.take());
        let (first, again) = (told(first), told(again.finding()));
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
