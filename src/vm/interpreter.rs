//! Runs programs: operands become clusters of the disk at hand, operations change the image that is
//! being built, the journal records what was meant.

mod files;
mod payloads;

use crate::build::payload::{Coding, Kind};
use crate::build::{
    BackingFormat, Builder, CompressedPlace, CompressedWrite, Fill, HeaderStyle, Names, NewBitmap,
    Plan, Scratch, SnapshotDetails, VmState,
};
use crate::content::{SubclusterChange, WriteNumber};
use crate::extent::Window;
use crate::images::{FileNames, Images};
use crate::limits::Limits;
use crate::qcow2::units::{GuestCluster, GuestOffset, SubclusterRange};

use super::journal::{Journal, Record};
use super::operand::{
    Anchor, At, Base, BitmapFlags, Change, Count, Inside, Keep, NameLength, Number,
};
use super::operation::{Operation, Prologue, overlay_plan};

/// What an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: the file is full, a bound is reached, or the image was that way before.
    None,
    /// It changed the image that is being built, or where things will go.
    Changed,
    /// It asked a question.
    Asked,
    /// The image is to be built and verified now.
    Checkpoint,
}

/// What a program asks of the image that it built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The extents of a window.
    Walk(Window),
    /// The mapping of a byte.
    Lookup(GuestOffset),
    /// Data.
    Read {
        /// The first byte.
        start: GuestOffset,
        /// How many; they may reach past the end of the disk.
        length_bytes: u16,
    },
}

/// A layer on which another one lies.
#[derive(Debug, Default)]
struct Layer {
    builder: Builder,
    journal: Journal,
}

/// The virtual machine. All buffers are reused from program to program.
#[derive(Debug)]
pub struct Vm {
    /// The image at the top of the chain.
    builder: Builder,
    limits: Limits,
    journal: Journal,
    /// The layers below it, from the bottom up, and behind them spare ones whose buffers are reused.
    below: Vec<Layer>,
    layers_below: usize,
    base: Base,
    questions: Vec<Question>,
    /// Where the last operation ended.
    last: u64,
    writes: u32,
    /// How many clusters operations may still touch.
    touchable: u64,
    /// How many bytes of payload `compress_as` may still place.
    payload_bytes: u64,
    checkpoints: u32,
}

impl Vm {
    /// Without a program; call [`Vm::begin`].
    pub fn new() -> Self {
        Self {
            builder: Builder::new(),
            limits: Limits::WALKED,
            journal: Journal::new(),
            below: Vec::new(),
            layers_below: 0,
            base: Base::Qcow2,
            questions: Vec::new(),
            last: 0,
            writes: 0,
            touchable: 0,
            payload_bytes: 0,
            checkpoints: 0,
        }
    }

    /// Begins a program: an empty image, an empty journal.
    pub fn begin(&mut self, prologue: &Prologue, limits: Limits) {
        (self.layers_below, self.base) = (0, prologue.base);
        self.limits = limits;
        self.begin_layer(prologue.plan());
        self.questions.clear();
        (self.last, self.writes, self.checkpoints) = (0, 0, 0);
        self.touchable = limits.touched_clusters;
        self.payload_bytes = limits.payload_bytes;
    }

    fn begin_layer(&mut self, plan: Plan) {
        self.builder.begin(plan, self.limits);
        let plan = self.builder.plan();
        self.journal.begin(plan.geometry.cluster_size, plan.size_bytes);
    }

    /// The image so far; of a chain, the one at the top.
    pub fn builder(&self) -> &Builder {
        &self.builder
    }

    /// What was meant of that image so far.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The images of all layers, from the top down.
    pub fn builders(&self) -> impl ExactSizeIterator<Item = &Builder> {
        self.layers().map(|(builder, _)| builder)
    }

    /// What was meant so far, for each layer from the top down.
    pub fn journals(&self) -> impl ExactSizeIterator<Item = &Journal> {
        self.layers().map(|(_, journal)| journal)
    }

    fn layers(&self) -> impl ExactSizeIterator<Item = (&Builder, &Journal)> {
        let height = self.layers_below;
        (0..height + 1).rev().map(move |at| match self.below[..height].get(at) {
            Some(layer) => (&layer.builder, &layer.journal),
            None => (&self.builder, &self.journal),
        })
    }

    /// Builds the files of all layers, which call each other by `names`. Those of the lower ones never
    /// change: what `images` holds of them from an earlier build of the same program stays.
    pub fn build(&self, names: &FileNames, scratch: &mut Scratch, images: &mut Images) {
        let built = images.layers().len();
        images.resize(self.layers_below + 1);
        for (height, layer) in self.below[..self.layers_below].iter().enumerate() {
            // What was at the top when it was built last may have gone on since.
            if height + 1 < built {
                continue;
            }
            let files = images.layer_mut(height);
            match layer.journal.raw {
                true => layer.builder.build_raw(files),
                false => layer.builder.build(&self.names(names, height), scratch, files),
            }
        }
        let height = self.layers_below;
        self.builder.build(&self.names(names, height), scratch, images.layer_mut(height));
    }

    /// What the image at `height` calls other files.
    fn names<'n>(&self, names: &'n FileNames, height: usize) -> Names<'n> {
        let backing = match height.checked_sub(1) {
            Some(below) => names.image(below, self.below[below].journal.raw),
            None => "",
        };
        Names { backing: backing.as_bytes(), data_file: names.data_file(height).as_bytes() }
    }

    /// What was asked since the last checkpoint.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }

    /// Forgets the questions: they were answered.
    pub fn answered(&mut self) {
        self.questions.clear();
    }

    /// Runs one operation.
    pub fn step(&mut self, operation: Operation) -> Effect {
        match operation {
            Operation::Write { at, clusters } => self.write(at, clusters),
            Operation::Compress { at, clusters, shape, skew } => {
                let kind = Kind { shape, coding: Coding::Usual };
                let (packing, write) = (self.packing(skew), self.next_write());
                self.compress(at, clusters, CompressedWrite { kind, packing, write })
            }
            Operation::Zero { at, clusters, keep } => self.zero(at, clusters, keep == Keep::Yes),
            Operation::Discard { at, clusters } => self.discard(at, clusters),
            Operation::Subclusters { at, change, first, count, stride } => {
                let range = SubclusterRange {
                    first: u32::from(first.get()),
                    count: u32::from(count.get()),
                    stride: u32::from(stride.get()),
                };
                self.subclusters(at, range, change)
            }
            Operation::Place { policy } => {
                self.builder.set_policy(policy);
                Effect::Changed
            }
            Operation::Reserve { gap } => {
                self.builder.leave_gap(gap.clusters());
                effect(gap.clusters() > 0)
            }
            Operation::Snapshot {} => self.snapshot(SnapshotDetails::PLAIN),
            Operation::DeleteSnapshot { index } => self.delete_snapshot(index),
            Operation::Resize { size } => {
                let size_bytes = size.bytes(self.builder.max_size_bytes());
                self.resize(size_bytes)
            }
            Operation::Header { length, order, unknown, bytes, flags } => {
                let (unknown, unknown_bytes) = (unknown.get(), bytes);
                let style = HeaderStyle { length, order, unknown, unknown_bytes, flags };
                effect(self.builder.set_header(style))
            }
            Operation::Walk { at, inside, length } => {
                let start = self.byte(at, inside);
                self.ask(Question::Walk(Window { start, length_bytes: length.get() }))
            }
            Operation::Lookup { at, inside } => {
                let byte = self.byte(at, inside);
                self.ask(Question::Lookup(byte))
            }
            Operation::Read { at, inside, length } => {
                let start = self.byte(at, inside);
                self.ask(Question::Read { start, length_bytes: length.get() })
            }
            Operation::Overlay {
                version,
                cluster_bits,
                refcount_order,
                features,
                data_in,
                size,
            } => {
                let (image, widths) = ((version, features), (cluster_bits, refcount_order));
                self.overlay(|below| overlay_plan(below, image, widths, (data_in, size)))
            }
            Operation::Bitmap { granularity, flags, name } => self.bitmap(granularity, flags, name),
            Operation::FillBitmap { index, entry, entries, fill } => {
                self.fill_bitmap(index.get(), entry, entries.get(), fill)
            }
            Operation::DeleteBitmap { index, leaving } => {
                let index = self.bitmap_index(index.get());
                effect(self.builder.delete_bitmap(index, leaving))
            }
            Operation::Checkpoint {} => {
                self.checkpoints += 1;
                match self.checkpoints <= self.limits.checkpoints {
                    true => Effect::Checkpoint,
                    false => Effect::None,
                }
            }
            Operation::CompressAs { at, shape, coding, skew } => {
                self.compress_as(at, Kind { shape: shape.0, coding }, skew)
            }
            Operation::EndFile { end, tail } => {
                self.builder.end_file(end, tail.units());
                Effect::Changed
            }
            Operation::Spare { table, l1 } => {
                effect(self.builder.spare(u64::from(table.get()), l1.units()))
            }
            Operation::Preallocate { at, clusters } => self.preallocate(at, clusters),
            Operation::Beyond { table, distance, clusters, kind } => {
                self.beyond(table.get(), distance, clusters, kind)
            }
            Operation::ApplySnapshot { index } => self.apply_snapshot(index),
            Operation::SnapshotWith { extra, vm, spread, id, name } => {
                let vm_state = self.vm_state(vm.get(), spread.get());
                self.snapshot(SnapshotDetails {
                    extra_bytes: u32::from(extra.get()),
                    vm_state,
                    id_bytes: u16::from(id.get()),
                    name_bytes: name.get(),
                    timed: true,
                })
            }
        }
    }

    /// Lays an empty image on top, as `plan` wants it by what lies below it.
    fn overlay(&mut self, plan: impl Fn((&Plan, BackingFormat)) -> Plan) -> Effect {
        if self.layers_below + 1 >= self.limits.layers {
            return Effect::None;
        }
        let raw = self.layers_below == 0 && self.base == Base::Raw;
        let format = if raw { BackingFormat::Raw } else { BackingFormat::Qcow2 };
        let plan = plan((self.builder.plan(), format));
        if self.below.len() == self.layers_below {
            self.below.push(Layer::default());
        }
        let layer = &mut self.below[self.layers_below];
        std::mem::swap(&mut self.builder, &mut layer.builder);
        std::mem::swap(&mut self.journal, &mut layer.journal);
        layer.journal.raw = raw;
        self.layers_below += 1;
        self.last = 0;
        self.begin_layer(plan);
        Effect::Changed
    }

    fn vm_state(&mut self, clusters: u8, spread: u8) -> Option<VmState> {
        let clusters = u64::from(clusters).min(self.touchable);
        self.touchable -= clusters;
        let (spread_bits, write) = (u32::from(spread), self.next_write());
        (clusters > 0).then_some(VmState { clusters, spread_bits, write })
    }

    fn snapshot(&mut self, details: SnapshotDetails) -> Effect {
        let taken = self.builder.snapshot(details);
        if taken {
            self.journal.records.push(Record::SnapshotTaken);
        }
        effect(taken)
    }

    /// The snapshot that `index` means, among those that there are.
    fn snapshot_at(&self, index: Number<0, 15>) -> usize {
        usize::from(index.get()) % self.builder.snapshot_count().max(1)
    }

    fn delete_snapshot(&mut self, index: Number<0, 15>) -> Effect {
        let index = self.snapshot_at(index);
        let deleted = self.builder.delete_snapshot(index);
        if deleted {
            self.journal.records.push(Record::SnapshotDeleted { index });
        }
        effect(deleted)
    }

    fn apply_snapshot(&mut self, index: Number<0, 15>) -> Effect {
        let index = self.snapshot_at(index);
        let applied = self.builder.apply_snapshot(index);
        if applied {
            self.journal.records.push(Record::SnapshotApplied { index });
        }
        effect(applied)
    }

    fn write(&mut self, at: At, clusters: Count) -> Effect {
        let write = self.next_write();
        self.for_clusters(at, clusters, |vm, cluster| {
            let host = vm.builder.write(cluster, write);
            if let Some(host) = host {
                vm.journal.written(cluster, host, write);
            }
            host.is_some()
        })
    }

    fn compress(&mut self, at: At, clusters: Count, wanted: CompressedWrite) -> Effect {
        self.for_clusters(at, clusters, |vm, cluster| {
            let placed = vm.builder.write_compressed(cluster, wanted);
            if let Some(CompressedPlace { offset: host, length_bytes, shape }) = placed {
                let write = wanted.write;
                let record = Record::Compressed { cluster, host, length_bytes, shape, write };
                vm.journal.records.push(record);
            }
            placed.is_some()
        })
    }

    fn zero(&mut self, at: At, clusters: Count, keep: bool) -> Effect {
        self.for_clusters(at, clusters, |vm, cluster| {
            let zeroed = vm.builder.zero(cluster, keep);
            if let Some(kept) = zeroed {
                vm.journal.records.push(Record::Zeroed { cluster, kept });
            }
            zeroed.is_some()
        })
    }

    fn discard(&mut self, at: At, clusters: Count) -> Effect {
        self.for_clusters(at, clusters, |vm, cluster| {
            let discarded = vm.builder.discard(cluster);
            if discarded {
                vm.journal.records.push(Record::Discarded { cluster });
            }
            discarded
        })
    }

    fn subclusters(&mut self, at: At, range: SubclusterRange, change: Change) -> Effect {
        let change = match change {
            Change::Write => SubclusterChange::Write(self.next_write()),
            Change::Zero => SubclusterChange::Zero,
            Change::Unallocate => SubclusterChange::Unallocate,
        };
        let Some(one) = Count::new(1) else { return Effect::None };
        self.for_clusters(at, one, |vm, cluster| {
            let changed = vm.builder.change_subclusters(cluster, range, change);
            if let Some(host) = changed {
                vm.journal.records.push(Record::Subclusters { cluster, range, change, host });
            }
            changed.is_some()
        })
    }

    fn resize(&mut self, size_bytes: u64) -> Effect {
        let Some(size_bytes) = self.builder.resize(size_bytes) else { return Effect::None };
        self.journal.records.push(Record::Resized { size_bytes });
        Effect::Changed
    }

    fn ask(&mut self, question: Question) -> Effect {
        let room = self.questions.len() < self.limits.questions;
        if room {
            self.questions.push(question);
        }
        if room { Effect::Asked } else { Effect::None }
    }

    /// Calls `change` with each cluster of the range that lies on the disk.
    #[inline]
    fn for_clusters(
        &mut self,
        at: At,
        clusters: Count,
        mut change: impl FnMut(&mut Self, GuestCluster) -> bool,
    ) -> Effect {
        let disk = self.builder.guest_clusters();
        if disk == 0 {
            return Effect::None;
        }
        let first = self.cluster(at) % disk;
        let end = (first + clusters.get().min(self.touchable)).min(disk);
        let mut changed = false;
        for cluster in first..end {
            changed |= change(self, GuestCluster::new(cluster));
        }
        self.touchable -= end - first;
        self.last = end;
        effect(changed)
    }

    /// The cluster that `at` means; it may lie past the end of the disk.
    fn cluster(&self, at: At) -> u64 {
        let disk = self.builder.guest_clusters();
        let steps = u64::from(at.steps);
        match at.anchor {
            Anchor::Start => steps,
            Anchor::End => disk.saturating_sub(1).saturating_sub(steps),
            Anchor::Last => self.last.saturating_add_signed(i64::from(at.steps.cast_signed())),
            Anchor::Table => {
                let entries = self.builder.plan().geometry.l2_entries();
                let tables = disk.div_ceil(entries).max(1);
                let (table, distance) = at.table();
                (table % tables * entries).saturating_add_signed(distance)
            }
            Anchor::Part => ((u128::from(disk) * u128::from(steps)) >> 16) as u64,
            Anchor::Past => disk.saturating_add(steps),
        }
    }

    fn byte(&self, at: At, inside: Inside) -> GuestOffset {
        let cluster_size = self.builder.plan().geometry.cluster_size;
        let cluster = GuestCluster::new(self.cluster(at));
        cluster_size.guest_offset(cluster).saturating_add(inside.bytes(cluster_size.bytes()))
    }

    fn bitmap(
        &mut self,
        granularity: Number<9, 31>,
        flags: BitmapFlags,
        name: NameLength,
    ) -> Effect {
        effect(self.builder.bitmap(NewBitmap {
            granularity_bits: granularity.get(),
            in_use: flags.has(BitmapFlags::IN_USE),
            auto: flags.has(BitmapFlags::AUTO),
            name_bytes: name.get(),
        }))
    }

    fn fill_bitmap(&mut self, index: u8, entry: u16, entries: u8, fill: Fill) -> Effect {
        let index = self.bitmap_index(index);
        let write = self.next_write();
        let count = u64::from(entries).min(self.touchable);
        self.touchable -= count;
        effect(self.builder.fill_bitmap(index, u64::from(entry), count, fill, write))
    }

    /// A bitmap, counted over those that there are.
    fn bitmap_index(&self, index: u8) -> usize {
        usize::from(index) % self.builder.bitmap_count().max(1)
    }

    fn next_write(&mut self) -> WriteNumber {
        self.writes += 1;
        WriteNumber(self.writes)
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
