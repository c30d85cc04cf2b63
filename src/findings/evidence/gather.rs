//! Gathers the evidence: explains the input, and walks the images that it builds.

use crate::disk::extent::Extent;
use crate::disk::offsets::HostOffset;
use crate::findings::explain;
use crate::findings::explain::{ExplainedEntry, FileRun, FileView, Step};
use crate::findings::log::Log;
use crate::findings::panics;
use crate::findings::records::MapRecord;
use crate::findings::runner::Runner;
use crate::harness::cases::implementation::{Implementation, no_observer};
use crate::harness::cases::target::{Expectation, Inputs};
use crate::harness::files::chain::Chain;
use crate::harness::targets::TargetKind;
use crate::images::files::FileNames;
use crate::images::image::Image;

use super::{EntryJson, Evidence, FileJson, RunJson, RunRole, StepJson};

impl Evidence {
    /// Gathers the evidence about `input`, which `runner` has run last. `log` has the events of that run. Images name
    /// other files by `names`. If the code under test panics, the evidence lacks its part.
    pub fn gather(
        target: TargetKind,
        input: &[u8],
        runner: &Runner,
        log: &Log,
        names: &FileNames,
    ) -> Self {
        let mut evidence = match runner.pipeline() {
            // The report has the commands, and QEMU has the files no longer.
            None if target.definition().inputs == Inputs::Recipes => Self::default(),
            None => Self::of_file(runner.implementation(), input),
            Some(pipeline) => {
                let operations = pipeline.operations_run();
                Self::of_program(runner.implementation(), target, input, operations, names)
            }
        };
        let vitals = log.vitals().into_iter();
        evidence.vitals = vitals.map(|(vital, value)| (vital.label(), value)).collect();
        evidence
    }

    fn of_program(
        implementation: &Implementation,
        target: TargetKind,
        input: &[u8],
        operations: usize,
        names: &FileNames,
    ) -> Self {
        let limits = target.limits();
        // If the build panics, explains the most operations for which it does not.
        let explained = (0..=operations).rev().find_map(|operations| {
            let explained = || explain::explain(input, limits, operations, names);
            panics::caught(explained).ok().map(|explanation| (operations, explanation))
        });
        let Some((operations, mut explanation)) = explained else { return Self::default() };
        let is_walked = target.definition().expectation != Expectation::NotWalked;
        let walked = is_walked.then(|| {
            let program = &explanation.program;
            let reads = panics::caught(|| explain::reads(program, limits, operations));
            explanation.note_reads(&reads.unwrap_or_default());
            walked(|| {
                explain::walk(&mut *implementation.engine(&no_observer()), explanation.built().1)
            })
        });
        let expected = &explanation.expected;
        let first_difference =
            walked.as_ref().map(|(actual, _)| first_difference(expected, actual));
        let (actual, walk_ended) = walked.unwrap_or_default();
        Self {
            steps: steps(&explanation.steps),
            files: explanation.files.iter().map(FileJson::from).collect(),
            expected: expected.iter().map(MapRecord::from).collect(),
            actual: actual.iter().map(MapRecord::from).collect(),
            walk_ended,
            first_difference: first_difference.flatten(),
            explanation: Some(explanation),
            ..Self::default()
        }
    }

    fn of_file(implementation: &Implementation, input: &[u8]) -> Self {
        let mut image = Image::default();
        image.write(HostOffset::ZERO, input);
        image.seal(input.len() as u64);
        let explained = panics::caught(|| explain::explain_file(&image));
        let chain = Chain::alone(image);
        let (actual, walk_ended) =
            walked(|| explain::walk_chain(&mut *implementation.engine(&no_observer()), &chain));
        Self {
            files: explained.iter().map(FileJson::from).collect(),
            actual: actual.iter().map(MapRecord::from).collect(),
            walk_ended,
            ..Self::default()
        }
    }
}

fn steps(steps: &[Step]) -> Vec<StepJson> {
    let mut next = 0;
    let json = |step: &Step| {
        let number = step.operation.is_some().then_some(next);
        next += usize::from(number.is_some());
        StepJson {
            counter: step.counter,
            bytes: hex::encode(step.bytes),
            number,
            operation: step.operation.map(|operation| operation.to_string()),
            effect: step.effect,
            changes: step.changes.iter().map(ToString::to_string).collect(),
            failing: false,
        }
    };
    steps.iter().map(json).collect()
}

/// Returns the extents of a walk. A panic ends the walk early.
fn walked(walk: impl FnOnce() -> (Vec<Extent>, Option<String>)) -> (Vec<Extent>, Option<String>) {
    panics::caught(walk).unwrap_or_else(|note| (Vec::new(), Some(note.detail)))
}

fn first_difference(expected: &[Extent], actual: &[Extent]) -> Option<usize> {
    let longest = expected.len().max(actual.len());
    (0..longest).find(|at| expected.get(*at) != actual.get(*at))
}

impl From<&FileView> for FileJson {
    fn from(view: &FileView) -> Self {
        Self {
            kind: view.kind,
            depth: view.depth,
            length_bytes: view.length_bytes,
            cut_to_bytes: view.cut_to_bytes,
            cluster_bytes: view.cluster_bytes,
            runs: view.runs.iter().map(RunJson::from).collect(),
            entries: view.entries.iter().map(EntryJson::from).collect(),
            fault: view.fault.clone(),
        }
    }
}

impl From<&FileRun> for RunJson {
    fn from(run: &FileRun) -> Self {
        let FileRun { bytes, role, references, on_disk, operations } = run;
        let unused = if *on_disk > 0 { RunRole::Leak } else { RunRole::Hole };
        Self {
            offset: bytes.start,
            length: bytes.end.saturating_sub(bytes.start),
            role: role.map_or(unused, RunRole::Used),
            references: *references,
            refcount: *on_disk,
            operations: operations.clone(),
        }
    }
}

impl From<&ExplainedEntry> for EntryJson {
    fn from(entry: &ExplainedEntry) -> Self {
        let digits = |value: u64| {
            let width = usize::from(entry.width_bytes) * 2;
            format!("{value:0width$x}")
        };
        Self {
            part: entry.part,
            name: entry.name,
            offset: entry.at.get(),
            width: entry.width_bytes,
            value: digits(entry.value),
            damaged: entry.damaged.as_ref().map(|(value, _)| digits(*value)),
            damaged_spelled: entry.damaged.as_ref().map(|(_, spelled)| spelled.clone()),
            spelled: entry.spelled.clone(),
            operation: entry.operation,
            read: entry.read,
        }
    }
}
