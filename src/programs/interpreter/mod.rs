//! Runs programs. The virtual machine turns operands into clusters of the current disk, operations change the image
//! that it builds, and the journal records the meaning of each operation.

mod bytes;
mod chain;
mod data;
mod disk;
mod files;
mod metadata;
mod state;
mod writing;

pub use state::Question;

use crate::disk::clusters::GuestCluster;
use crate::disk::extent::Window;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::GuestOffset;
use crate::formats::anatomy::Part;
use crate::images::damage::{Attack, Spot};
use crate::images::format::BuildBuffers;
use crate::images::format::file_plan::ExtentPlan;
use crate::images::limits::Limits;
use crate::images::qcow2::{Builder, ImagePlan, Sizes, SnapshotDetails};

use super::Operation;
use super::journal::Journal;
use super::operand::{At, Base, BytesKind, Count, Inside, Length, Magnitude, Number};
use super::operation::Class;
use super::prologue::{ImageOperands, Prologue};
use state::{GivenBytes, Writing};

/// The effect of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// No effect: the file is full, a limit is reached, or the image already was in this state.
    None,
    /// The operation changed the image, or the placement of later clusters.
    Changed,
    /// The operation asked a question.
    Asked,
    /// The operation asks the caller to build and verify the image now.
    Checkpoint,
}

/// A layer that has another one on top.
#[derive(Debug, Default)]
struct BuiltLayer {
    builder: Builder,
    journal: Journal,
}

/// The virtual machine. It reuses all buffers from program to program.
#[derive(Debug)]
pub struct Vm {
    /// The builder of the image at the top of the chain.
    builder: Builder,
    limits: Limits,
    journal: Journal,
    /// The buffers of a build.
    buffers: BuildBuffers,
    /// The layers below the top, from the bottom up. Spare ones follow, whose buffers are reused.
    below: Vec<BuiltLayer>,
    layers_below: usize,
    base: Base,
    questions: Vec<Question>,
    attacks: Vec<Attack>,
    writing: Writing,
    /// An operation has changed the image, or the placement of clusters.
    has_built: bool,
    given: GivenBytes,
    /// The guest cluster behind the last operation's clusters.
    last: u64,
    writes: u32,
    /// The number of clusters that operations may still touch.
    touchable: u64,
    /// The number of clusters that runs may still preallocate.
    preallocatable: u64,
    /// The bytes of payload that `compress_as` may still place, of compressed grains, and of data that the build
    /// copies.
    payload_bytes: u64,
    checkpoints: u32,
}

impl Vm {
    /// Creates a machine without a program; call [`Vm::begin`] next.
    pub fn new() -> Self {
        Self {
            builder: Builder::new(),
            limits: Limits::WALKED,
            journal: Journal::new(),
            buffers: BuildBuffers::default(),
            below: Vec::new(),
            layers_below: 0,
            base: Base::Qcow2,
            questions: Vec::new(),
            attacks: Vec::new(),
            writing: Writing::default(),
            has_built: false,
            given: GivenBytes::default(),
            last: 0,
            writes: 0,
            touchable: 0,
            preallocatable: 0,
            payload_bytes: 0,
            checkpoints: 0,
        }
    }

    /// Begins a program with an empty image and an empty journal.
    pub fn begin(&mut self, prologue: &Prologue, limits: Limits) {
        (self.layers_below, self.base) = (0, prologue.base);
        self.limits = limits;
        self.begin_layer(prologue.plan());
        self.questions.clear();
        self.attacks.clear();
        self.given.clear();
        self.writing.begin(limits.request_bytes);
        self.has_built = false;
        (self.last, self.writes, self.checkpoints) = (0, 0, 0);
        self.touchable = limits.touched_clusters;
        self.preallocatable = limits.preallocated_clusters;
        self.payload_bytes = limits.payload_bytes;
    }

    fn begin_layer(&mut self, plan: ImagePlan) {
        self.builder.begin(plan, self.limits);
        let plan = self.builder.plan();
        let geometry = &plan.geometry;
        let disk = (geometry.cluster_size, geometry.cell_bytes(), plan.size_bytes);
        let parts = plan.file.parts(plan.geometry.cluster_size);
        self.journal.begin(disk, (plan.file.format, parts));
    }

    /// Returns the builder of the current image; of a chain, the one at the top.
    pub fn builder(&self) -> &Builder {
        &self.builder
    }

    /// Returns the journal of the current image; of a chain, the one at the top.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Runs one operation.
    pub fn step(&mut self, operation: Operation) -> Effect {
        if self.is_writing(&operation) {
            return self.step_writing(operation);
        }
        if !self.has_effect(operation) {
            return Effect::None;
        }
        let effect = self.step_building(operation);
        self.has_built |= effect == Effect::Changed;
        effect
    }

    /// Runs an operation before the writing.
    #[inline]
    fn step_building(&mut self, operation: Operation) -> Effect {
        use Operation::*;
        match operation {
            Write { at, clusters } => self.write(at, clusters),
            Compress { at, clusters, shape, skew } => self.compress(at, clusters, shape, skew),
            Zero { at, clusters, keep } => self.zero(at, clusters, keep),
            Discard { at, clusters } => self.discard(at, clusters),
            Subclusters { at, change, first, count, stride } => {
                self.subclusters(at, (first, count, stride), change)
            }
            Place { policy } => self.place(policy),
            Reserve { gap } => self.reserve(gap),
            Snapshot {} => self.snapshot(SnapshotDetails::PLAIN),
            DeleteSnapshot { index } => self.delete_snapshot(index),
            Resize { size } => self.resize(size),
            Walk { at, inside, length } => self.walk(at, inside, length),
            Lookup { at, inside } => self.lookup(at, inside),
            Read { at, inside, length } => self.read(at, inside, length),
            Checkpoint {} => self.checkpoint(),
            Overlay { version, cluster_bits, refcount_order, features, data_in, size } => {
                let image =
                    ImageOperands { version, cluster_bits, refcount_order, features, data_in };
                self.overlay(image, size)
            }
            OverlayInFormat { cluster_bits, form, size } => {
                self.overlay_in_format(cluster_bits, form, size)
            }
            Header { length, order, unknown, bytes, flags } => {
                self.header(length, order, (unknown, bytes), flags)
            }
            Bitmap { granularity, flags, name } => self.bitmap(granularity, flags, name),
            FillBitmap { index, entry, entries, fill } => {
                self.fill_bitmap(index, entry, entries, fill)
            }
            DeleteBitmap { index, leaving } => self.delete_bitmap(index, leaving),
            ApplySnapshot { index } => self.apply_snapshot(index),
            SnapshotWith { extra, vm, spread, id, name } => {
                self.snapshot_with(extra, (vm, spread), (id, name))
            }
            Extent { kind, length, lead } => self.extent(kind, length, lead),
            WriteAs { at, clusters, look } => self.write_as(at, clusters, look),
            CompressAs { at, shape, coding, skew } => self.compress_as(at, shape, coding, skew),
            EndFile { end, tail } => self.end_file(end, tail),
            Spare { table, l1 } => self.spare(table, l1),
            WriteData { at, clusters, content, value } => {
                self.write_data(at, clusters, content, value)
            }
            Preallocate { at, clusters } => self.preallocate(at, clusters),
            PreallocateRun { at, length } => self.preallocate_run(at, length),
            Beyond { table, distance, clusters, kind } => {
                self.beyond(table, distance, clusters, kind)
            }
            Patch { .. } | Trap { .. } | FailRead { .. } | Truncate { .. } => {
                self.step_attack(operation)
            }
            ReserveFar { gap } => self.reserve_far(gap),
            SpareBlocks { blocks, distance } => self.spare_blocks(blocks, distance),
            Bytes { kind, length } => self.begin_bytes(kind, length),
            Data(bytes) => self.add_data(bytes),
            WriteAt { .. }
            | WriteDataAt { .. }
            | ZeroAt { .. }
            | Sync { .. }
            | FailFile { .. }
            | Crash { .. }
            | Device { .. }
            | InFlight { .. }
            | ReadAt { .. } => Effect::None,
        }
    }

    fn checkpoint(&mut self) -> Effect {
        self.checkpoints += 1;
        match self.checkpoints <= self.limits.checkpoints {
            true => Effect::Checkpoint,
            false => Effect::None,
        }
    }
}

impl Default for Vm {
    fn default() -> Self {
        Self::new()
    }
}

fn effect(changed: bool) -> Effect {
    if changed { Effect::Changed } else { Effect::None }
}

impl Vm {
    /// Runs one operation, and reports its event to `observer`.
    pub fn step_observed(&mut self, operation: Operation, observer: &dyn Observer) -> Effect {
        if !observer.observes() {
            return self.step(operation);
        }
        let before = self.builder().census();
        let effect = self.step(operation);
        let class = operation.class();
        let event = if effect == Effect::None { Event::NoEffect } else { class.event() };
        observer.event(State::Build, event);
        if effect == Effect::Changed && matches!(class, Class::Builds(_)) {
            self.builder().census().report(&before, observer);
        }
        effect
    }
}

/// Operands after clamping, for operations that leave no record in the journal.
impl Vm {
    /// Returns the clamped values of the operands of `operation`, as if it ran now: each with its name and unit. Empty
    /// if the journal records them, or if nothing clamps the operand.
    pub fn clamped(&self, operation: Operation) -> Vec<(&'static str, u64)> {
        match operation {
            Operation::Reserve { gap } => vec![("clusters", gap.units())],
            Operation::ReserveFar { gap } => {
                vec![("clusters", self.builder.far_gap(gap.units()))]
            }
            Operation::EndFile { tail, .. } => vec![("bytes of tail", tail.units())],
            Operation::Spare { table, l1 } => {
                let limit = self.limits.l1_entries(&self.builder.plan().geometry);
                let entries = l1.units().min(limit);
                vec![("refcount table clusters", u64::from(table.get())), ("L1 entries", entries)]
            }
            Operation::SpareBlocks { blocks, distance } => {
                vec![
                    ("refcount blocks", blocks.get()),
                    ("entries before them", u64::from(distance)),
                ]
            }
            Operation::FillBitmap { index, entry, entries, .. } => {
                let index = self.bitmap_index(index);
                let table_entries = self.builder.bitmap_table_entries(index).unwrap_or(1);
                let first = u64::from(entry) % table_entries;
                let count = u64::from(entries.get()).min(self.touchable).min(table_entries - first);
                vec![("bitmap", index as u64), ("entry", first), ("entries", count)]
            }
            Operation::DeleteBitmap { index, .. } => {
                vec![("bitmap", self.bitmap_index(index) as u64)]
            }
            Operation::Beyond { table, distance, clusters, .. } => {
                self.clamped_beyond(table, distance, clusters)
            }
            Operation::Extent { kind, length, lead } => {
                let plan = ExtentPlan::new(kind, length.units(), lead);
                vec![("clusters", plan.clusters), ("unused bytes", plan.lead_bytes)]
            }
            Operation::Truncate { cut, .. } => vec![("bytes", cut.units())],
            _ => Vec::new(),
        }
    }

    fn clamped_beyond(
        &self,
        table: Number<0, 15>,
        distance: u16,
        clusters: Count,
    ) -> Vec<(&'static str, u64)> {
        let range = self.clusters_beyond(table, distance, clusters).unwrap_or(0..0);
        vec![("guest cluster", range.start), ("clusters", range.end - range.start)]
    }
}

/// Operations that ask a question of the image that the program built.
impl Vm {
    /// Asks for the extents of a window.
    fn walk(&mut self, at: At, inside: Inside, length: Magnitude) -> Effect {
        let start = self.byte(at, inside);
        self.ask(Question::Walk(Window { start, length_bytes: length.get() }))
    }

    /// Asks for the mapping of a byte.
    fn lookup(&mut self, at: At, inside: Inside) -> Effect {
        let byte = self.byte(at, inside);
        self.ask(Question::Lookup(byte))
    }

    /// Asks for the data of a range.
    fn read(&mut self, at: At, inside: Inside, length: Length) -> Effect {
        let start = self.byte(at, inside);
        self.ask(Question::Read { start, length_bytes: length.get() })
    }

    /// Returns the questions since the last checkpoint.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }

    /// Forgets the questions, which the caller has answered.
    pub fn answered(&mut self) {
        self.questions.clear();
    }

    fn ask(&mut self, question: Question) -> Effect {
        let room = self.questions.len() < self.limits.questions;
        if room {
            self.questions.push(question);
        }
        if room { Effect::Asked } else { Effect::None }
    }

    fn byte(&self, at: At, inside: Inside) -> GuestOffset {
        let cluster_size = self.builder.plan().geometry.cluster_size;
        let cluster = GuestCluster::new(self.cluster(at));
        cluster_size.guest_offset(cluster) + inside.bytes(cluster_size.bytes())
    }
}

/// Operations that attack the files.
impl Vm {
    /// Returns the attacks. They are applied each time the files are built from now on.
    pub fn attacks(&self) -> &[Attack] {
        &self.attacks
    }

    /// Runs an operation that attacks the files.
    fn step_attack(&mut self, operation: Operation) -> Effect {
        match operation {
            Operation::Patch { part, depth, nth, transform, value } => {
                let spot = self.spot(part, depth, nth);
                self.attack(Attack::Patch { spot, transform, value })
            }
            Operation::Trap { part, depth, nth, transform, value, reads } => {
                let (spot, value) = (self.spot(part, depth, nth), value.into());
                self.attack(Attack::Trap { spot, transform, value, reads })
            }
            Operation::FailRead { part, depth, reads } => {
                self.attack(Attack::FailRead { part, depth: depth.get(), reads })
            }
            Operation::Truncate { depth, cut } => {
                self.attack(Attack::Truncate { depth: depth.get(), bytes: cut.units() })
            }
            _ => Effect::None,
        }
    }

    /// Returns the element that an attack names. If that is a payload, the bytes that wait select a byte of it.
    fn spot(&mut self, part: Part, depth: Number<0, 3>, nth: u16) -> Spot {
        let mut inside = 0;
        if part == Part::Payload {
            let bytes = self.given.waiting(BytesKind::Inside).unwrap_or_default().iter();
            inside = bytes.take(4).rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
            self.given.use_up(BytesKind::Inside);
        }
        Spot { part, depth: depth.get(), nth, inside }
    }

    /// Records an attack, if the target allows attacks and their number is below the limit. The attack finds its
    /// element only when it is applied.
    fn attack(&mut self, attack: Attack) -> Effect {
        let room = self.attacks.len() < self.limits.attacks;
        self.attacks.extend(room.then_some(attack));
        effect(room)
    }
}
