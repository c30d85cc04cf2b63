//! What `replay` says of one input.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use qcowfuzz::engines::Walker;
use qcowfuzz::extent::Extent;
use qcowfuzz::harness::{Failure, Harness, Outcome};

use super::output::Record;
use super::replay::{PanicNote, Target};

/// What became of one run.
pub enum Found {
    /// Nothing was found.
    Nothing(Outcome),
    /// An oracle found something.
    Failure(Box<Failure>),
    /// The code under test panicked.
    Panic(PanicNote),
}

/// The judgement in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing was found.
    Ok,
    /// The engine does not support the image, and was asked nothing.
    Unsupported,
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
    operations: usize,
    /// After how many of them the violation was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    operations_run: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effective: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<usize>,
    /// The program's text.
    program: String,
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
    /// Gathers what there is to tell of the last run of `harness`.
    pub fn new(input: &Path, target: Target, harness: &Harness<Walker>, found: &Found) -> Self {
        let program = harness.program();
        let mut report = Self {
            input: input.display().to_string(),
            target: target.name(),
            verdict: Verdict::Violation,
            fingerprint: None,
            detail: None,
            operations: program.operations.len(),
            operations_run: None,
            effective: None,
            images: None,
            program: program.to_string(),
            first_difference: None,
        };
        match found {
            Found::Nothing(outcome) => {
                report.verdict =
                    if outcome.unsupported { Verdict::Unsupported } else { Verdict::Ok };
                report.effective = Some(outcome.effective);
                report.images = Some(outcome.images);
            }
            Found::Failure(failure) => {
                let Failure { violation, operations_run } = failure.as_ref();
                report.fingerprint = Some(violation.fingerprint());
                report.detail = Some(violation.detail.clone());
                report.operations_run = Some(*operations_run);
                if walked(violation.oracle) {
                    report.first_difference = difference(harness.expected(), harness.actual());
                }
            }
            Found::Panic(note) => {
                report.fingerprint = Some(format!("panic: {}", note.file));
                report.detail = Some(note.detail.clone());
            }
        }
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
            (None, _) => "ok",
        }
    }

    /// Everything, the fingerprint first.
    pub fn whole(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.judgement())?;
        write!(out, "{}: ", self.input)?;
        if let (Some(effective), Some(images)) = (self.effective, self.images) {
            let operations = self.operations;
            writeln!(
                out,
                "{operations} operations, {effective} with an effect; images verified: {images}"
            )?;
        } else if let Some(run) = self.operations_run {
            writeln!(out, "found after {run} of {} operations", self.operations)?;
        } else {
            writeln!(out, "found in a program of {} operations", self.operations)?;
        }
        if let Some(detail) = &self.detail {
            writeln!(out, "{detail}")?;
        }
        writeln!(out)?;
        // The image line is line 0, so an operation's number is its line's.
        for (number, line) in self.program.lines().enumerate() {
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
mod tests {
    use super::*;
    use qcowfuzz::harness::Checks;
    use qcowfuzz::oracles::Violation;
    use qcowfuzz::vm::generate::{Wanted, generate};

    fn report(found: &Found) -> Report {
        let mut harness = Harness::new(Walker::default());
        let program = generate(1, Wanted { operations: 3, compressed: false });
        harness.run(&program.encode(), Checks::AtCheckpoints).unwrap();
        Report::new(Path::new("input"), Target::MapExtents, &harness, found)
    }

    fn found(oracle: &'static str) -> Found {
        let violation = Violation {
            oracle,
            field: "kind",
            expected: "normal",
            actual: "unallocated",
            detail: "where".to_string(),
        };
        Found::Failure(Box::new(Failure { violation, operations_run: 2 }))
    }

    fn whole(report: &Report) -> String {
        let mut out = Vec::new();
        report.whole(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_violation_is_told_fingerprint_first_and_marked_in_the_program() {
        let mut report = report(&found("model"));
        assert_eq!(report.verdict, Verdict::Violation);
        let told = whole(&report);
        let lines: Vec<_> = told.lines().collect();
        assert_eq!(lines[0], "model: kind, normal → unallocated");
        assert_eq!(lines[1], "input: found after 2 of 3 operations");
        assert_eq!(lines[2], "where");
        // Line 4 is the image's; the second operation is marked, and no other.
        let marked: Vec<_> = (0..).zip(&lines).filter(|(_, line)| line.contains("<--")).collect();
        assert_eq!(marked.len(), 1);
        assert_eq!(marked[0].0, 6);
        // The mark is a comment: the text is still the program.
        let text = lines[4..].join("\n");
        let assembled = qcowfuzz::vm::text::assemble(&text).unwrap();
        assert_eq!(assembled.to_string(), report.program);
        // The walker gave what was expected, so there is nothing more; now it did not.
        let record = Record::empty(5);
        report.first_difference =
            Some(Difference { extent: 3, expected: Some(record), actual: None });
        let told = whole(&report);
        assert!(told.contains("first difference, extent 3:\n  expected {\"start\":5,"), "{told}");
        assert!(told.ends_with("  actual   no extent\n"), "{told}");
    }

    #[test]
    fn differences_are_found_where_the_lists_differ() {
        use qcowfuzz::extent::Mapping;
        use qcowfuzz::qcow2::units::GuestOffset;
        let at = |start, length_bytes| Extent {
            start: GuestOffset::new(start),
            length_bytes,
            mapping: Mapping::HOLE,
        };
        assert!(difference(&[at(0, 5)], &[at(0, 5)]).is_none());
        let first = difference(&[at(0, 5), at(5, 1)], &[at(0, 5), at(5, 2)]).unwrap();
        assert_eq!(first.extent, 1);
        let missing = difference(&[at(0, 5), at(5, 1)], &[at(0, 5)]).unwrap();
        assert!(missing.extent == 1 && missing.actual.is_none() && missing.expected.is_some());
    }

    #[test]
    fn a_panic_is_a_violation() {
        let detail = "src/map/walk.rs:7:1: index out of bounds".to_string();
        let note = PanicNote { file: "src/map/walk.rs".to_string(), detail };
        let report = report(&Found::Panic(note));
        assert_eq!(report.verdict, Verdict::Violation);
        let told = whole(&report);
        assert!(
            told.starts_with("panic: src/map/walk.rs\ninput: found in a program of 3"),
            "{told}"
        );
        let mut json = Vec::new();
        report.json(&mut json).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["fingerprint"], "panic: src/map/walk.rs");
        assert_eq!(json["verdict"], "violation");
    }
}
