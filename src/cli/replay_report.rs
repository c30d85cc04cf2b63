//! What `replay` says of one input.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use qcowfuzz::extent::Extent;
use qcowfuzz::observer::Observer;
use qcowfuzz::oracles::raw::RawOutcome;

use super::output::Record;
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
pub struct Report {
    input: String,
    target: &'static str,
    /// The judgement.
    pub verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operations: Option<usize>,
    /// After how many of them the violation was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    operations_run: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effective: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<usize>,
    /// How many of these were not opened, where they are damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<usize>,
    /// How many were opened and not walked to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<usize>,
    /// The program's text, where the input is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_difference: Option<Difference>,
}

/// The first extent that is not what was expected.
#[derive(Debug, Serialize)]
struct Difference {
    /// Its place in both lists, from 0.
    extent: usize,
    expected: Option<Record>,
    actual: Option<Record>,
}

impl Report {
    /// Gathers what there is to tell of the last run of `runner`.
    pub fn new(
        input: &Path,
        target: Target,
        runner: &Runner<impl Observer + Clone>,
        found: &Found,
    ) -> Self {
        let program = runner.program();
        let mut report = Self {
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
            program: program.map(ToString::to_string),
            first_difference: None,
        };
        match found {
            Found::Nothing(outcome) => {
                report.verdict =
                    if outcome.unsupported { Verdict::Unsupported } else { Verdict::Ok };
                report.effective = Some(outcome.effective);
                report.images = Some(outcome.images);
                if target == Target::Hostile {
                    report.refused = Some(outcome.refused);
                    report.failed = Some(outcome.failed);
                }
            }
            Found::File(outcome) => {
                report.verdict = match outcome {
                    RawOutcome::Refused => Verdict::Refused,
                    RawOutcome::Failed => Verdict::Failed,
                    RawOutcome::Walked => Verdict::Walked,
                }
            }
            Found::Failure(failure) => {
                report.operations_run = Some(failure.operations_run);
                if let Some((expected, actual)) = runner.extents()
                    && walked(failure.violation.oracle)
                {
                    report.first_difference = difference(expected, actual);
                }
            }
            Found::Violation(_) | Found::Panic(_) => {}
        }
        (report.fingerprint, report.detail) = found.finding().unzip();
        report
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

    fn judgement(&self) -> &str {
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
    fn course(&self) -> String {
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

    /// Everything, the fingerprint first.
    pub fn whole(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.judgement())?;
        writeln!(out, "{}: {}", self.input, self.course())?;
        if let Some(detail) = &self.detail {
            writeln!(out, "{detail}")?;
        }
        let Some(program) = &self.program else { return Ok(()) };
        writeln!(out)?;
        // The image line is line 0, so an operation's number is its line's.
        for (number, line) in program.lines().enumerate() {
            match self.operations_run {
                Some(run) if run == number => writeln!(out, "{line} ; <-- found after this")?,
                _ => writeln!(out, "{line}")?,
            }
        }
        let Some(difference) = &self.first_difference else { return Ok(()) };
        writeln!(out, "\nfirst difference, extent {}:", difference.extent)?;
        for (name, record) in [("expected", &difference.expected), ("actual  ", &difference.actual)]
        {
            match record {
                Some(record) => writeln!(out, "  {name} {}", serde_json::to_string(record)?)?,
                None => writeln!(out, "  {name} no extent")?,
            }
        }
        Ok(())
    }
}

/// Whether an oracle judges the walk of the whole disk: only then the lists that the harness keeps are
/// those of the image at fault.
fn walked(oracle: &str) -> bool {
    matches!(oracle, "walk" | "bounds" | "partition" | "flags" | "model" | "maximal")
}

fn difference(expected: &[Extent], actual: &[Extent]) -> Option<Difference> {
    let extent = (0..expected.len().max(actual.len()))
        .find(|extent| expected.get(*extent) != actual.get(*extent))?;
    let record = |extents: &[Extent]| extents.get(extent).map(Record::from);
    Some(Difference { extent, expected: record(expected), actual: record(actual) })
}

#[cfg(test)]
mod tests;
