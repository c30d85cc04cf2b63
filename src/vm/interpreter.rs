//! Runs programs: operands become clusters of the disk at hand, operations change the image that is
//! being built, the journal records what was meant.

use crate::build::{Builder, CompressedWrite, Packing, SnapshotDetails, VmState};
use crate::content::{SubclusterChange, WriteNumber};
use crate::extent::Window;
use crate::limits::Limits;
use crate::qcow2::units::{GuestCluster, GuestOffset, SubclusterRange};

use super::journal::{Journal, Record};
use super::operand::{Anchor, At, Change, Count, Inside, Keep, Number, Skew};
use super::operation::{Operation, Prologue};

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

/// The virtual machine. All buffers are reused from program to program.
#[derive(Debug)]
pub struct Vm {
    builder: Builder,
    limits: Limits,
    journal: Journal,
    questions: Vec<Question>,
    /// Where the last operation ended.
    last: u64,
    writes: u32,
    /// How many clusters operations may still touch.
    touchable: u64,
    checkpoints: u32,
}

impl Vm {
    /// Without a program; call [`Vm::begin`].
    pub fn new() -> Self {
        Self {
            builder: Builder::new(),
            limits: Limits::WALKED,
            journal: Journal::new(),
            questions: Vec::new(),
            last: 0,
            writes: 0,
            touchable: 0,
            checkpoints: 0,
        }
    }

    /// Begins a program: an empty image, an empty journal.
    pub fn begin(&mut self, prologue: &Prologue, limits: Limits) {
        self.builder.begin(prologue.plan(), limits);
        self.limits = limits;
        let plan = self.builder.plan();
        self.journal.begin(plan.geometry.cluster_size, plan.size_bytes);
        self.questions.clear();
        (self.last, self.writes, self.checkpoints) = (0, 0, 0);
        self.touchable = limits.touched_clusters;
    }

    /// The image so far.
    pub fn builder(&self) -> &Builder {
        &self.builder
    }

    /// What was meant so far.
    pub fn journal(&self) -> &Journal {
        &self.journal
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
                let bytes = self.builder.plan().geometry.cluster_size.bytes();
                let packing = match skew {
                    Skew::Packed => Packing::Packed,
                    Skew::Fresh(steps) => Packing::Fresh { skew_bytes: Skew::bytes(steps, bytes) },
                };
                let write = self.next_write();
                self.compress(at, clusters, CompressedWrite { shape, packing, write })
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
            Operation::Checkpoint {} => {
                self.checkpoints += 1;
                match self.checkpoints <= self.limits.checkpoints {
                    true => Effect::Checkpoint,
                    false => Effect::None,
                }
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
            if let Some((host, length_bytes)) = placed {
                let CompressedWrite { shape, write, .. } = wanted;
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
