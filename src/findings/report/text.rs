//! The text of a report, for people.

use std::io::{self, Write};

use crate::findings::evidence::{EntryJson, FileJson, RunJson, StepJson};
use crate::findings::explain::FileKind;
use crate::findings::records::MapRecord;
use crate::harness::cases::target::Expectation;
use crate::programs::Effect;

use super::Report;

/// The number of extents that are printed before and after the first difference.
const AROUND: usize = 3;
/// The maximum number of lines for the runs of a file, and for the entries that the walker read.
const MOST_LINES: usize = 40;

impl Report {
    /// Writes the whole report as text, the fingerprint first.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn text(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.judgement())?;
        writeln!(out, "{}: {}", self.input, self.course())?;
        if let Some(detail) = &self.detail {
            writeln!(out, "{detail}")?;
        }
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
fn steps(program: &str, steps: &[StepJson], out: &mut impl Write) -> io::Result<()> {
    let image = program.lines().next().unwrap_or_default();
    writeln!(out, "{image}")?;
    let widest = |step: &StepJson| step.operation.as_ref().map_or(0, String::len);
    let width = steps.iter().map(widest).max().unwrap_or(0).min(56);
    for StepJson { counter, bytes, number, operation, effect, changes, failing } in steps {
        let (Some(number), Some(operation)) = (number, operation) else {
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

/// Writes the extents around the first difference, side by side.
fn differences(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let evidence = &report.evidence;
    let Some(first) = evidence.first_difference else { return Ok(()) };
    writeln!(out, "\nextents around the first difference (guest, status, host):")?;
    // The model has no extents for a damaged image, so these are the extents before the damage.
    let [expected, actual] = match report.target.definition().expectation {
        Expectation::UntouchedExtents => ["before the damage", "the walker"],
        _ => ["expected", "actual"],
    };
    writeln!(out, "        {expected:44}{actual}")?;
    let longest = evidence.expected.len().max(evidence.actual.len());
    let printed = |records: &[MapRecord], at: usize| {
        records.get(at).map_or("—".to_string(), |it| it.extent().to_string())
    };
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

fn layout(file: &FileJson, out: &mut impl Write) -> io::Result<()> {
    let FileJson { kind, depth, length_bytes, cluster_bytes, runs, fault, .. } = file;
    let what = kind.name();
    let layer = layer(*depth);
    writeln!(out, "\n{what}{layer}: {length_bytes} bytes, clusters of {cluster_bytes}")?;
    for run in runs.iter().take(MOST_LINES) {
        let RunJson { offset, length, role, references, refcount, operations } = run;
        let clusters = length.div_ceil((*cluster_bytes).max(1));
        let counts = match (references, refcount, kind) {
            (1, 1, _)
            | (0, 0, _)
            | (_, _, FileKind::Raw | FileKind::DataFile | FileKind::OtherImage)
            | (_, _, FileKind::Extent(_)) => String::new(),
            _ => format!("  references {references}, refcount {refcount}"),
        };
        let (by, role) = (by(operations), role.name());
        let place = format!("{offset:#x}");
        writeln!(out, "  {place:>14} {clusters:>8} × {role}{counts}{by}")?;
    }
    more(runs.len(), out)?;
    fault.iter().try_for_each(|fault| writeln!(out, "  incomplete: {fault}"))
}

/// Returns the depth of a file below the image at the top, in words.
fn layer(depth: usize) -> String {
    match depth {
        0 => String::new(),
        1 => ", 1 layer down".to_string(),
        more => format!(", {more} layers down"),
    }
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
fn damages(files: &[FileJson], out: &mut impl Write) -> io::Result<bool> {
    let of_file = |file: &FileJson| file.entries.iter().filter(|it| it.damaged.is_some()).count();
    let cut = files.iter().any(|file| file.cut_to_bytes.is_some());
    let count: usize = files.iter().map(of_file).sum();
    if count == 0 && !cut {
        return Ok(false);
    }
    writeln!(out, "\ndamaged:")?;
    for file in files {
        let layer = layer(file.depth);
        if let Some(length) = file.cut_to_bytes {
            writeln!(out, "  cut to {length} bytes{layer}")?;
        }
        for entry in &file.entries {
            let EntryJson { part, name, offset, value, damaged, damaged_spelled, .. } = entry;
            if let (Some(damaged), Some(spelled)) = (damaged, damaged_spelled) {
                let name = if name.is_empty() { String::new() } else { format!(" {name}") };
                let (place, part) = (format!("{offset:#x}"), part.name());
                writeln!(out, "  {place:>14} {part}{name}{layer} {value} → {damaged}: {spelled}")?;
            }
        }
    }
    Ok(true)
}

/// Writes the number of entries that the walker reads in each part of the top image, and the entries of its tables.
fn reads(top: &FileJson, damaged: bool, out: &mut impl Write) -> io::Result<()> {
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
        let EntryJson { part, offset, value, spelled, operation, .. } = entry;
        let by = by(operation.as_slice());
        let (place, part) = (format!("{offset:#x}"), part.name());
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
