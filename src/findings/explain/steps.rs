//! The operations of an input and their effects.

use std::fmt;
use std::ops::Range;

use serde::{Serialize, Serializer};

use crate::disk::clusters::ClusterSize;
use crate::disk::extent::Window;
use crate::disk::image_format::ImageFormat;
use crate::disk::storage::Storage;
use crate::findings::explain::provenance::Provenance;
use crate::images::damage::{Attack, Spot};
use crate::images::files::{Images, LayerFile};
use crate::images::format::layer_anatomy::LayerAnatomy;
use crate::images::limits::Limits;
use crate::programs::operation::{Class, OPERATION_BYTES};
use crate::programs::program::records;
use crate::programs::{Effect, JournalRecord, Operation, Placed, Program, Question, Vm};

/// A record of an input.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The program counter: the byte of the input at which the record begins.
    pub counter: usize,
    /// The bytes of the record.
    pub bytes: RecordBytes,
    /// The number of the operation, from 0; `None` if the record has no meaning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<usize>,
    /// The decoded operation, with its operands folded into their ranges. `None` if the opcode has no meaning yet, or
    /// if the program has reached its maximum length.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "serialise_operation")]
    pub operation: Option<Operation>,
    /// The effect of the operation; `None` if it did not run.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "serialise_effect")]
    pub effect: Option<Effect>,
    /// The index of the layer that the operation changed; 0 is the lowest layer.
    #[serde(skip)]
    height: usize,
    /// The changes that the operation made, with operands clamped to the disk and to the limits.
    // The key is older than the name, and scripts read it.
    #[serde(rename = "deeds")]
    pub changes: Vec<StepChange>,
    /// True if the violation was found after this operation.
    pub failing: bool,
}

/// The bytes of a record. They print as hexadecimal digits.
#[derive(Clone, Copy, Debug)]
pub struct RecordBytes([u8; OPERATION_BYTES]);

impl fmt::Display for RecordBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for RecordBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn serialise_operation<S: Serializer>(
    operation: &Option<Operation>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    operation.map(|operation| operation.to_string()).serialize(serializer)
}

fn serialise_effect<S: Serializer>(
    effect: &Option<Effect>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    effect.map(effect_name).serialize(serializer)
}

/// Returns the name of an effect.
pub fn effect_name(effect: Effect) -> &'static str {
    match effect {
        Effect::None => "none",
        Effect::Changed => "changed",
        Effect::Asked => "asked",
        Effect::Checkpoint => "checkpoint",
    }
}

/// A change that an operation made, or another result of it.
#[derive(Clone, Debug, PartialEq)]
pub enum StepChange {
    /// Guest bytes have a new state.
    Mapped {
        /// The new state, in words.
        what: String,
        /// The guest range: whole clusters, which may reach past the end of the disk.
        guest: Range<u64>,
        /// The host range that holds them, if they have one.
        host: Option<Range<u64>>,
    },
    /// Another change, or another result, in words.
    Other(String),
}

/// Runs the first `operations` of a program. Returns the effect of each, and the provenance of each layer from the top
/// down.
pub(super) fn run(
    input: &[u8],
    program: &Program,
    limits: Limits,
    operations: usize,
) -> (Vm, Vec<Step>, Vec<Provenance>) {
    let mut vm = Vm::new();
    vm.begin(&program.prologue, limits);
    let (mut steps, mut index) = (Vec::new(), 0);
    let mut provenance = vec![Provenance::default()];
    for (counter, bytes, operation) in records(input) {
        let operation = operation.filter(|_| index < program.operations.len());
        let (effect, changes) = match operation.filter(|_| index < operations) {
            Some(operation) => {
                let (effect, changes) = step(&mut vm, operation, index, &mut provenance);
                (Some(effect), changes)
            }
            None => (None, Vec::new()),
        };
        let (bytes, number) = (RecordBytes(*bytes), operation.map(|_| index));
        index += usize::from(operation.is_some());
        let (height, failing) = (vm.journals().len() - 1, false);
        steps.push(Step { counter, bytes, number, operation, effect, height, changes, failing });
    }
    // A raw file has no mapping: a guest offset is also the host offset.
    let raw: Vec<bool> = vm.journals().map(|journal| journal.format == ImageFormat::Raw).collect();
    for step in steps.iter_mut().filter(|step| raw.iter().rev().nth(step.height) == Some(&true)) {
        step.changes.iter_mut().for_each(StepChange::in_place);
    }
    provenance.reverse();
    (vm, steps, provenance)
}

impl StepChange {
    /// Returns the guest bytes that the change maps, if it maps any.
    fn guest(&self) -> Option<&Range<u64>> {
        match self {
            Self::Mapped { guest, .. } => Some(guest),
            _ => None,
        }
    }

    /// Removes the host range of a change, because the file has no mapping.
    fn in_place(&mut self) {
        if let Self::Mapped { host, .. } = self {
            *host = None;
        }
    }
}

/// Runs the operation at `index`. `provenance` has the provenance of each layer from the bottom up.
fn step(
    vm: &mut Vm,
    operation: Operation,
    index: usize,
    provenance: &mut Vec<Provenance>,
) -> (Effect, Vec<StepChange>) {
    let (before, layers) = (vm.journal().mark(), vm.journals().len());
    let (asked, clamped) = (vm.questions().len(), vm.clamped(operation));
    let requested = vm.requests().len();
    let effect = vm.step(operation);
    let mut changes = Vec::new();
    if vm.journals().len() > layers {
        provenance.push(Provenance::default());
        let plan = vm.builder().plan();
        let (size_bytes, cluster_bytes) = (plan.size_bytes, plan.geometry.cluster_size.bytes());
        let layer =
            format!("a disk of {size_bytes:#x} bytes in clusters of {cluster_bytes:#x} on top");
        return (effect, vec![StepChange::Other(layer)]);
    }
    let journal = vm.journal();
    for record in journal.since(before) {
        let mut change = change(&record, journal.cluster_size);
        let guest = change.guest();
        if guest.is_some_and(|guest| journal.parts.at(guest.start).flat_at.is_some()) {
            change.in_place();
        }
        add(&mut changes, change);
    }
    if let Some(top) = provenance.last_mut() {
        top.follow(journal, before, index);
    }
    let mut texts: Vec<String> = vm.questions().iter().skip(asked).map(question).collect();
    texts.extend(vm.requests().iter().skip(requested).map(ToString::to_string));
    if effect != Effect::None {
        texts.extend(clamped.into_iter().map(|(name, value)| format!("{name}: {value}")));
    }
    changes.extend(texts.into_iter().map(StepChange::Other));
    (effect, changes)
}

/// The state of compressed data. Each cluster of them is a change of its own.
const COMPRESSED: &str = "compressed";

fn change(record: &JournalRecord, cluster_size: ClusterSize) -> StepChange {
    let what = match *record {
        JournalRecord::Written { .. } => "data",
        JournalRecord::Compressed { .. } => COMPRESSED,
        JournalRecord::Zeroed { .. } => "zeros",
        JournalRecord::Discarded { .. } => "unallocated",
        JournalRecord::Subclusters { .. } => "subclusters",
        JournalRecord::Resized { size_bytes } => &format!("disk of {size_bytes:#x} bytes"),
        JournalRecord::SnapshotTaken => "snapshot taken",
        JournalRecord::SnapshotDeleted { index } => &format!("snapshot {index} deleted"),
        JournalRecord::SnapshotApplied { index } => &format!("snapshot {index} applied"),
    };
    match Placed::of(record, cluster_size) {
        Some(Placed { guest, host }) => StepChange::Mapped { what: what.to_string(), guest, host },
        None => StepChange::Other(what.to_string()),
    }
}

fn question(question: &Question) -> String {
    match question {
        Question::Walk(window) if window.length_bytes == u64::MAX => {
            format!("walk from guest {:#x} on", window.start)
        }
        Question::Walk(Window { start, length_bytes }) => {
            format!("walk of guest {start:#x}+{length_bytes:#x}")
        }
        Question::Lookup(guest) => format!("look-up of guest {guest:#x}"),
        Question::Read { start, length_bytes } => {
            format!("read of guest {start:#x}+{length_bytes:#x}")
        }
    }
}

/// Appends a change. If it continues the last one, both on the disk and in the file, the last one becomes longer
/// instead.
fn add(changes: &mut Vec<StepChange>, change: StepChange) {
    if let (
        Some(StepChange::Mapped { what: last_what, guest: last_guest, host: last_host }),
        StepChange::Mapped { what, guest, host },
    ) = (changes.last_mut(), &change)
        && last_what == what
        && what != COMPRESSED
        && last_guest.end == guest.start
    {
        let goes_on = match (&mut *last_host, host) {
            (None, None) => true,
            (Some(last), Some(next)) if last.end == next.start => {
                last.end = next.end;
                true
            }
            _ => false,
        };
        if goes_on {
            last_guest.end = guest.end;
            return;
        }
    }
    changes.push(change);
}

impl Serialize for StepChange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for StepChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = |range: &Range<u64>| {
            format!("{:#x}+{:#x}", range.start, range.end.saturating_sub(range.start))
        };
        match self {
            Self::Mapped { what, guest, host } => {
                write!(f, "guest {} {what}", span(guest))?;
                host.iter().try_for_each(|host| write!(f, " at host {}", span(host)))
            }
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// Adds the target of each attack. Attacks count elements in the undamaged image.
pub(super) fn aim(steps: &mut [Step], images: &Images, attacks: &[Attack]) {
    let made = |step: &&mut Step| {
        let attack = step.operation.is_some_and(|operation| operation.class() == Class::Attacks);
        attack && step.effect == Some(Effect::Changed)
    };
    let mut anatomy = LayerAnatomy::default();
    for (step, attack) in steps.iter_mut().filter(made).zip(attacks) {
        let (Attack::Patch { spot, .. } | Attack::Trap { spot, .. }) = attack else { continue };
        let Spot { part, depth, nth, inside } = *spot;
        let depth = usize::from(depth) % images.layers().len().max(1);
        let Some(files) = images.layers().nth(depth) else {
            continue;
        };
        // The image that a program builds is valid before an attack.
        if anatomy.read(files).is_ok()
            && let Some((file, element)) = anatomy.element(part, nth)
        {
            let element = element.inside(inside.into(), files.file(file).length_bytes());
            let layer = if depth == 0 { String::new() } else { format!(", {depth} down") };
            let file = match file {
                LayerFile::Extent(index) => format!(" of extent {}", index + 1),
                LayerFile::Image | LayerFile::DataFile => String::new(),
            };
            let aimed = format!("on {} at host {:#x}{file}{layer}", part.name(), element.at);
            step.changes.push(StepChange::Other(aimed));
        }
    }
}
