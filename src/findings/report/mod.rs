//! The report of an input: the verdict, the fingerprint, and the evidence; and its text for people.

#[cfg(feature = "cli")]
pub mod bundle;
pub mod evidence;
pub mod examiner;
mod fault;
pub(crate) mod log;
#[cfg(feature = "cli")]
pub mod page;
#[cfg(feature = "cli")]
pub(crate) mod qemu;
pub(crate) mod records;
#[cfg(feature = "cli")]
pub mod script;

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::disk::extent::Extent;
use crate::disk::offsets::GuestOffset;
use crate::harness::cases::lanes::{LEGEND, Lane};
use crate::harness::cases::target::Inputs;
use crate::harness::targets::TargetKind;
use crate::harness::{Outcome, Pipeline};
use crate::programs::Effect;

use super::explain::{DamagedValue, ExplainedEntry, FileKind, FileRun, FileView, Step};
use super::runner::{Finding, Ran, Runner, finding_of_two};

use evidence::Evidence;

/// The verdict on an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
    #[default]
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
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The file with the input.
    pub input: String,
    /// The target that the input is for.
    pub target: TargetKind,
    /// The implementation under test, with its version if that is known.
    pub implementation: String,
    /// The options of the command that choose the implementation and its claims.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// One line that is the same for every input that shows the same bug.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The place and the values, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The first guest byte about which the answers disagree, if the finding is about certain bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_offset: Option<u64>,
    /// A few words about what writes such images, if the run shows a finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writers: Option<String>,
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
            implementation: runner.implementation().facts().title(),
            known: runner.met().iter().map(|met| met.known.clone()).collect(),
            operations: program.map(|program| program.operations.len()),
            recipe: runner.recipe_lines(),
            ..Self::default()
        };
        match ran {
            Ran::Sound(outcome) => {
                report.verdict = Verdict::of(outcome, target.definition().inputs);
                if target.runs_programs() {
                    report.effective = Some(outcome.effective);
                    report.images = Some(outcome.images);
                }
                if target.limits().attacks > 0 {
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
        report.show(ran.finding());
        report.writers = report.fingerprint.as_ref().and_then(|_| fault::writers(target, runner));
        report
    }

    /// Replaces the finding.
    fn show(&mut self, finding: Option<Finding>) {
        self.guest_offset = finding.as_ref().and_then(|it| it.guest).map(GuestOffset::get);
        (self.fingerprint, self.detail) = finding.map(|it| (it.fingerprint, it.detail)).unzip();
    }

    /// Replaces the finding of the first run by the difference between the two runs.
    pub fn differs(&mut self, first: &Ran, again: &Ran) {
        self.verdict = Verdict::Violation;
        self.show(finding_of_two(first, again));
    }

    /// Writes the report as one line of JSON.
    pub fn json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        out.write_all(b"\n")
    }

    /// Writes one line: the input, and the fingerprint or the verdict.
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

/// The number of extents that are printed before and after the first difference.
const AROUND: usize = 3;
/// The maximum number of lines for the runs of a file, and for the entries that the walker read.
const MOST_LINES: usize = 40;

impl Report {
    /// Writes the whole report as text, the fingerprint first.
    pub fn text(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.judgement())?;
        writeln!(out, "{}: {}", self.input, self.course())?;
        if let Some(detail) = &self.detail {
            writeln!(out, "{detail}")?;
        }
        if let Some(fingerprint) = &self.fingerprint {
            writeln!(out, "fault: {}", fault::kind(fingerprint))?;
        }
        if let Some(writers) = &self.writers {
            writeln!(out, "such images: {writers}")?;
        }
        writeln!(out, "implementation: {}", self.implementation)?;
        for known in &self.known {
            writeln!(out, "known: {known}")?;
        }
        if !self.folded.is_empty() {
            writeln!(out, "\nfolded, because the engine does not claim these features:")?;
            self.folded.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
        }
        let evidence = &self.evidence;
        if let Some(program) = &self.program {
            writeln!(out)?;
            match evidence.steps.is_empty() {
                true => write!(out, "{program}")?,
                false => steps(program, &evidence.steps, out)?,
            }
        }
        lanes(&evidence.lanes, out)?;
        if !self.recipe.is_empty() {
            writeln!(out)?;
            self.recipe.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
        differences(self, out)?;
        for file in &evidence.files {
            layout(file, out)?;
        }
        let damaged = damages(&evidence.files, out)?;
        if let Some(top) = evidence.files.first() {
            reads(top, damaged, out)?;
        }
        if !evidence.vitals.is_empty() {
            let vitals = evidence.vitals.iter().map(|(name, value)| format!("{name} {value}"));
            writeln!(out, "\nvitals: {}", vitals.collect::<Vec<_>>().join(", "))?;
        }
        Ok(())
    }
}

/// Writes the program. The explanation of each operation is a comment, so the text still assembles.
fn steps(program: &str, steps: &[Step], out: &mut impl Write) -> io::Result<()> {
    let image = program.lines().next().unwrap_or_default();
    writeln!(out, "{image}")?;
    let texts: Vec<_> = steps.iter().map(|it| it.operation.map(|it| it.to_string())).collect();
    let width = texts.iter().flatten().map(String::len).max().unwrap_or(0).min(56);
    for (step, text) in steps.iter().zip(&texts) {
        let Step { counter, bytes, number, effect, changes, failing, .. } = step;
        let (Some(number), Some(operation)) = (number, text) else {
            writeln!(out, "; at {counter}: {bytes} has no meaning")?;
            continue;
        };
        let mark = if *failing { " <-- found after this" } else { "" };
        writeln!(out, "{operation:width$} ; #{number} at {counter}: {bytes}{mark}")?;
        match effect {
            None => writeln!(out, "    ; not run")?,
            Some(Effect::None) => writeln!(out, "    ; no effect")?,
            Some(_) => {}
        }
        for change in changes {
            writeln!(out, "    ; {change}")?;
        }
    }
    Ok(())
}

/// Writes the requests in flight over time.
fn lanes(groups: &[Vec<Lane>], out: &mut impl Write) -> io::Result<()> {
    for lanes in groups {
        writeln!(out, "\nin flight, a column for each turn: {LEGEND}")?;
        let width = lanes.iter().map(|lane| lane.request.len()).max().unwrap_or(0);
        for Lane { request, turns } in lanes {
            writeln!(out, "  {request:width$} |{turns}|")?;
        }
    }
    Ok(())
}

/// Writes the extents around the first difference: side by side, or those of the model alone if the engine does not
/// map.
fn differences(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let evidence = &report.evidence;
    let Some(first) = evidence.first_difference else { return Ok(()) };
    if !evidence.is_mapped {
        writeln!(out, "\nexpected extents around the finding (guest, status, host):")?;
        let last = (first + AROUND + 1).min(evidence.expected.len());
        for (at, extent) in evidence.expected.iter().enumerate().take(last) {
            let mark = if at == first { '>' } else { ' ' };
            if at + AROUND >= first {
                writeln!(out, "{mark} {at:>4}  {extent}")?;
            }
        }
        return Ok(());
    }
    writeln!(out, "\nextents around the first difference (guest, status, host):")?;
    // The model has no extents for a damaged image, so these are the extents before the damage.
    let is_damaged = report.target.limits().attacks > 0;
    let expected = if is_damaged { "before the damage" } else { "expected" };
    writeln!(out, "        {expected:44}actual")?;
    let longest = evidence.expected.len().max(evidence.actual.len());
    let printed =
        |extents: &[Extent], at: usize| extents.get(at).map_or("—".to_string(), Extent::to_string);
    for at in first.saturating_sub(AROUND)..(first + AROUND + 1).min(longest) {
        let mark = if at == first { '>' } else { ' ' };
        let (expected, actual) = (printed(&evidence.expected, at), printed(&evidence.actual, at));
        writeln!(out, "{mark} {at:>4}  {expected:44}{actual}")?;
    }
    if let Some(ended) = &evidence.walk_ended {
        writeln!(out, "  the walk ended early: {ended}")?;
    }
    Ok(())
}

fn layout(file: &FileView, out: &mut impl Write) -> io::Result<()> {
    let FileView { kind, length_bytes, cluster_bytes, runs, fault, .. } = file;
    let (what, layer) = (kind.name(), file.layer());
    writeln!(out, "\n{what}{layer}: {length_bytes} bytes, clusters of {cluster_bytes}")?;
    for run in runs.iter().take(MOST_LINES) {
        let FileRun { bytes, references, on_disk: refcount, operations, .. } = run;
        let counts = match (references, refcount, kind) {
            (1, 1, _)
            | (0, 0, _)
            | (_, _, FileKind::Raw | FileKind::DataFile | FileKind::OtherImage)
            | (_, _, FileKind::Extent(_)) => String::new(),
            _ => format!("  references {references}, refcount {refcount}"),
        };
        let (by, role, clusters) = (by(operations), run.role_name(), file.clusters(run));
        let place = format!("{:#x}", bytes.start);
        writeln!(out, "  {place:>14} {clusters:>8} × {role}{counts}{by}")?;
    }
    more(runs.len(), out)?;
    fault.iter().try_for_each(|fault| writeln!(out, "  incomplete: {fault}"))
}

/// Returns the numbers of the operations.
fn by(operations: &[usize]) -> String {
    let numbers: Vec<_> = operations.iter().take(8).map(|number| format!("#{number}")).collect();
    let more = if operations.len() > numbers.len() { ", …" } else { "" };
    match numbers.is_empty() {
        true => String::new(),
        false => format!("  by {}{more}", numbers.join(", ")),
    }
}

/// Writes the entries that a hostile program changed. Reports whether there are any.
fn damages(files: &[FileView], out: &mut impl Write) -> io::Result<bool> {
    let of_file = |file: &FileView| file.entries.iter().filter(|it| it.damaged.is_some()).count();
    let cut = files.iter().any(|file| file.cut_to_bytes.is_some());
    let count: usize = files.iter().map(of_file).sum();
    if count == 0 && !cut {
        return Ok(false);
    }
    writeln!(out, "\ndamaged:")?;
    for file in files {
        let layer = file.layer();
        if let Some(length) = file.cut_to_bytes {
            writeln!(out, "  cut to {length} bytes{layer}")?;
        }
        for entry in &file.entries {
            let ExplainedEntry { part, name, at, value, damaged, .. } = entry;
            if let Some(DamagedValue { value: damaged, spelled }) = damaged {
                let name = if name.is_empty() { String::new() } else { format!(" {name}") };
                let (place, part) = (format!("{at:#x}"), part.name());
                writeln!(out, "  {place:>14} {part}{name}{layer} {value} → {damaged}: {spelled}")?;
            }
        }
    }
    Ok(true)
}

/// Writes the number of entries that the walker reads in each part of the top image, and the entries of its tables.
fn reads(top: &FileView, damaged: bool, out: &mut impl Write) -> io::Result<()> {
    let read = || top.entries.iter().filter(|entry| entry.read);
    if read().next().is_none() {
        return Ok(());
    }
    let mut parts = Vec::new();
    for entries in top.entries.chunk_by(|one, next| one.part == next.part) {
        let count = entries.iter().filter(|entry| entry.read).count();
        if let Some(first) = entries.first().filter(|_| count > 0) {
            parts.push(format!("{} {count} of {}", first.part.name(), entries.len()));
        }
    }
    let before = if damaged { " before the damage" } else { "" };
    writeln!(out, "\nread by the walker{before}: {}", parts.join(", "))?;
    let entries: Vec<_> = read().filter(|entry| entry.name.is_empty()).collect();
    for entry in entries.iter().take(MOST_LINES) {
        let ExplainedEntry { part, at, value, spelled, operation, .. } = entry;
        let by = by(operation.as_slice());
        let (place, part) = (format!("{at:#x}"), part.name());
        writeln!(out, "  {place:>14} {part} {value}: {spelled}{by}")?;
    }
    more(entries.len(), out)
}

fn more(lines: usize, out: &mut impl Write) -> io::Result<()> {
    match lines.checked_sub(MOST_LINES) {
        None | Some(0) => Ok(()),
        Some(more) => writeln!(out, "  … and {more} more (--json has them)"),
    }
}
