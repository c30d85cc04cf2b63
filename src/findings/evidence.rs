//! The evidence of a finding: everything that explains an input, in types that serialise. `replay` prints it, `report`
//! draws it, `bundle` packs it.

mod gather;

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::formats::anatomy::Part;
use crate::harness::oracles::qcow2::recount::Role;
use crate::programs::Effect;

use super::explain::{Explanation, FileKind};
use super::records::MapRecord;

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
