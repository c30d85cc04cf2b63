//! The evidence of a finding: everything that explains an input, in types that serialise. `replay` prints it, `report`
//! draws it, `bundle` packs it.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::disk::extent::Extent;
use crate::disk::offsets::HostOffset;
use crate::findings::explain::{
    self, ExplainedEntry, Explanation, FileKind, FileRun, FileView, Step,
};
use crate::findings::panics;
use crate::findings::report::log::Log;
use crate::findings::report::records::MapRecord;
use crate::findings::runner::Runner;
use crate::formats::anatomy::Part;
use crate::harness::cases::implementation::{Implementation, no_observer};
use crate::harness::cases::target::{Expectation, Inputs};
use crate::harness::files::chain::Chain;
use crate::harness::oracles::qcow2::recount::Role;
use crate::harness::targets::TargetKind;
use crate::images::files::FileNames;
use crate::images::files::image::Image;
use crate::programs::Effect;

/// The explanation of an input.
#[derive(Debug, Default, Serialize)]
pub struct Evidence {
    /// The records of the program; empty if the input is a file.
    pub steps: Vec<StepJson>,
    /// The measures of the last image, by name.
    pub vitals: BTreeMap<&'static str, u64>,
    /// The files that the program built, from the top image down.
    pub files: Vec<FileJson>,
    /// The extents that the reference model expects; empty if the input is a file.
    pub expected: Vec<MapRecord>,
    /// The extents that the walker of this project emits.
    pub actual: Vec<MapRecord>,
    /// The reason why the walk ended early, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walk_ended: Option<String>,
    /// The index of the first extent in which the two lists differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_difference: Option<usize>,
    #[serde(skip)]
    pub(super) explanation: Option<Explanation>,
}

/// A record of the program.
#[derive(Debug, Serialize)]
pub struct StepJson {
    /// The offset in the input at which the record begins.
    pub counter: usize,
    /// The bytes of the record, in hexadecimal digits.
    pub bytes: String,
    /// The number of the operation, from 0; `None` if the record has no meaning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<usize>,
    /// The operation as text, with its decoded operands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The effect; `None` if the operation did not run.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "serialise_effect")]
    pub effect: Option<Effect>,
    /// The changes that the operation made, with operands clamped to the disk and to the limits.
    // The key is older than the name, and scripts read it.
    #[serde(rename = "deeds")]
    pub changes: Vec<String>,
    /// True if the violation was found after this operation.
    pub failing: bool,
}

/// A file that the program builds.
#[derive(Debug, Serialize)]
pub struct FileJson {
    /// The kind of the file.
    #[serde(serialize_with = "serialise_kind")]
    pub kind: FileKind,
    /// The number of layers above.
    pub depth: usize,
    /// The length that the build wrote, in bytes.
    pub length_bytes: u64,
    /// The length to which a hostile program has cut the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_to_bytes: Option<u64>,
    /// The cluster size, in bytes.
    pub cluster_bytes: u64,
    /// All bytes of the file, in order.
    pub runs: Vec<RunJson>,
    /// The fields and entries of an image, part by part.
    pub entries: Vec<EntryJson>,
    /// The reason why the file could not be decoded in full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Neighbouring bytes of a file.
#[derive(Debug, Serialize)]
pub struct RunJson {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// The role of the bytes.
    pub role: RunRole,
    /// The number of references to each cluster.
    pub references: u64,
    /// The refcount of each cluster in the file.
    pub refcount: u64,
    /// The numbers of the operations that wrote the bytes, or that wrote the data that the bytes map.
    pub operations: Vec<usize>,
}

/// The role of neighbouring bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunRole {
    /// A structure or data.
    Used(Role),
    /// Nothing references the bytes, and they have no refcount.
    Hole,
    /// Nothing references the bytes, but they have a refcount.
    Leak,
}

impl RunRole {
    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Used(role) => role.name(),
            Self::Hole => "hole",
            Self::Leak => "leak",
        }
    }
}

impl Serialize for RunRole {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A field or an entry.
#[derive(Debug, Serialize)]
pub struct EntryJson {
    /// The structure that contains it.
    #[serde(serialize_with = "serialise_part")]
    pub part: Part,
    /// The name of a field in the specification; an entry has none.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: &'static str,
    /// The host offset.
    pub offset: u64,
    /// The number of bytes.
    pub width: u8,
    /// The value, in hexadecimal digits.
    pub value: String,
    /// The value after the attacks of a hostile program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
    /// The meaning of the damaged value's bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged_spelled: Option<String>,
    /// The meaning of the value's bits.
    pub spelled: String,
    /// The number of the last operation that changed the guest range that the entry maps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<usize>,
    /// True if the walker of this project reads the entry.
    pub read: bool,
}

impl Evidence {
    /// Reports whether there is no evidence.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Marks the last of the first `operations_run` operations: the violation was found after it.
    pub fn mark(&mut self, operations_run: usize) {
        for step in &mut self.steps {
            step.failing = step.number.is_some_and(|number| number + 1 == operations_run);
        }
    }

    /// Returns the explanation of a program, with the files that it builds.
    pub fn explanation(&self) -> Option<&Explanation> {
        self.explanation.as_ref()
    }
}

/// Returns the name of an effect.
pub(crate) fn effect_name(effect: Effect) -> &'static str {
    match effect {
        Effect::None => "none",
        Effect::Changed => "changed",
        Effect::Asked => "asked",
        Effect::Checkpoint => "checkpoint",
    }
}

fn serialise_effect<S: Serializer>(
    effect: &Option<Effect>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    effect.map(effect_name).serialize(serializer)
}

fn serialise_kind<S: Serializer>(kind: &FileKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match kind {
        FileKind::Image => "image",
        FileKind::OtherImage => "other_image",
        FileKind::Raw => "raw",
        FileKind::DataFile => "data_file",
        FileKind::Extent(_) => "extent",
    })
}

fn serialise_part<S: Serializer>(part: &Part, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(part.name())
}

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
        evidence.vitals = vitals.map(|(vital, value)| (vital.name(), value)).collect();
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
