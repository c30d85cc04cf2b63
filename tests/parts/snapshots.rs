//! Snapshots.

use qcowfuzz::formats::qcow2::entry::{L1Entry, Layout, each_refcount_run, refcount_block_offset};
use test_support::prelude::*;

use qcowfuzz::disk::error::StorageError;
use qcowfuzz::disk::storage::{GRAIN_BYTES, each_data};
use qcowfuzz::formats::qcow2::geometry::{Geometry, Version};
use qcowfuzz::formats::qcow2::header::Header;
use qcowfuzz::formats::qcow2::snapshot::{SnapshotEntry, SnapshotExtra, each_entry, extra_of};
use qcowfuzz::internal::programs::journal::JournalRecord;
use qcowfuzz::internal::programs::operand::Number;
use qcowfuzz::internal::programs::prologue::Prologue;

use super::{ANYWHERE, Part, Trace};

/// Chooses a refcount order of at least 1: one bit cannot count shared clusters.
const COUNTED: fn(&mut Prologue) =
    |prologue| prologue.refcount_order = Number::new(1.max(prologue.refcount_order.get())).unwrap();

/// The parts of snapshots.
pub const PARTS: &[Part] = &[
    Part {
        name: "several snapshots",
        prepare: COUNTED,
        lines: |_| {
            "write at=start+0 clusters=4\nsnapshot\nwrite at=start+1 clusters=2\nsnapshot\n\
             zero at=start+2 clusters=1 keep=yes"
                .to_string()
        },
        had: |trace| trace.vm.builder().snapshot_count() >= 2,
    },
    Part {
        name: "a deleted snapshot",
        prepare: COUNTED,
        lines: |_| {
            "write at=start+3 clusters=2\nsnapshot\nwrite at=start+4 clusters=2\n\
             delete_snapshot index=0"
                .to_string()
        },
        had: |trace| trace.changed(|one| matches!(one, Operation::DeleteSnapshot { .. })),
    },
    Part {
        name: "an applied snapshot",
        prepare: COUNTED,
        lines: |_| {
            "write at=start+0 clusters=3\nsnapshot\nwrite at=start+1 clusters=3\n\
             apply_snapshot index=0"
                .to_string()
        },
        had: |trace| trace.changed(|one| matches!(one, Operation::ApplySnapshot { .. })),
    },
    Part {
        name: "an applied snapshot of another size",
        prepare: COUNTED,
        lines: |entropy| {
            let size = ["3<<16+0", "70<<14+512", "9<<20+0"][entropy.below(3) as usize];
            format!(
                "write at=start+0 clusters=2\nsnapshot\nresize size={size}\n\
                 write at=end-1 clusters=2\nsnapshot\nresize size=5<<20+0\napply_snapshot index=1"
            )
        },
        had: applied_another_size,
    },
    Part {
        name: "VM state",
        prepare: ANYWHERE,
        lines: |entropy| snapshot_with(entropy, 30, 3, 9),
        had: |trace| Seen::in_program(trace).any(|_, extra| extra.vm_state_bytes > Some(0)),
    },
    Part {
        name: "VM state past 4 GiB",
        prepare: |prologue| {
            prologue.cluster_bits = Number::new(14.max(prologue.cluster_bits.get())).unwrap();
        },
        lines: |_| "snapshot_with extra=24 vm=3 spread=18 id=1 name=8".to_string(),
        had: |trace| Seen::in_program(trace).any(|_, extra| extra.vm_state_bytes > Some(1 << 32)),
    },
    Part {
        name: "VM state of the active disk",
        prepare: COUNTED,
        lines: |_| {
            "snapshot_with extra=16 vm=2 spread=0 id=3 name=4\napply_snapshot index=0\n\
             apply_snapshot index=1\napply_snapshot index=2"
                .to_string()
        },
        had: |trace| Seen::in_program(trace).active_vm_state(),
    },
    Part {
        name: "extra data that no reader knows",
        prepare: ANYWHERE,
        lines: |entropy| {
            let extra = [25, 40, 511, 1024][entropy.below(4) as usize];
            format!("snapshot_with extra={extra} vm=0 spread=0 id=2 name=5")
        },
        had: |trace| Seen::in_program(trace).any(|entry, _| entry.extra_bytes > 24),
    },
    Part {
        name: "extra data without the disk's size",
        prepare: |prologue| prologue.version = Version::V2,
        lines: |entropy| snapshot_with(entropy, 16, 2, 5),
        had: |trace| Seen::in_program(trace).any(|entry, _| entry.extra_bytes < 16),
    },
    Part {
        name: "long ids and names, and empty ones",
        prepare: ANYWHERE,
        lines: |entropy| {
            let id = [0, 200][entropy.below(2) as usize];
            let name = [0, 127, 256, 4095][entropy.below(4) as usize];
            format!("snapshot_with extra=16 vm=0 spread=0 id={id} name={name}")
        },
        had: |trace| {
            let odd = |length: u16| length == 0 || length > 100;
            Seen::in_program(trace).any(|entry, _| odd(entry.id_bytes) || odd(entry.name_bytes))
        },
    },
    Part {
        name: "a snapshot's own L2 table",
        prepare: COUNTED,
        lines: |_| "write at=start+0 clusters=2\nsnapshot\nwrite at=start+1 clusters=1".to_string(),
        had: |trace| Seen::in_program(trace).table_counts().contains(&1),
    },
    Part {
        name: "a snapshot's shared L2 table",
        prepare: COUNTED,
        lines: |_| "write at=start+0 clusters=2\nsnapshot".to_string(),
        had: |trace| Seen::in_program(trace).table_counts().iter().any(|count| *count > 1),
    },
    Part {
        name: "a count at its order's maximum",
        prepare: |prologue| {
            prologue.version = Version::V3;
            prologue.refcount_order = Number::new(1).unwrap();
        },
        lines: |_| "write at=start+0 clusters=2\nsnapshot\nsnapshot\nsnapshot".to_string(),
        had: |trace| {
            let seen = Seen::in_program(trace);
            let max = seen.header.geometry.max_refcount();
            max > 1 && seen.counts.values().any(|count| *count == max)
        },
    },
];

fn snapshot_with(entropy: &mut Entropy, extra: u64, vm: u64, spread: u64) -> String {
    let (extra, spread) = (entropy.below(extra), entropy.below(spread));
    let vm = 1 + entropy.below(vm);
    format!(
        "write at=start+0 clusters=2\n\
         snapshot_with extra={extra} vm={vm} spread={spread} id=1 name=9"
    )
}

/// Reports whether the program applied a snapshot that was taken of a disk of another size.
fn applied_another_size(trace: &Trace) -> bool {
    let journal = trace.vm.journal();
    let (mut size, mut taken) = (journal.size_bytes, Vec::new());
    journal.records.iter().any(|record| {
        let before = size;
        match *record {
            JournalRecord::Resized { size_bytes } => size = size_bytes,
            JournalRecord::SnapshotTaken => taken.push(size),
            JournalRecord::SnapshotDeleted { index } => _ = taken.remove(index),
            JournalRecord::SnapshotApplied { index } => size = taken[index],
            _ => {}
        }
        matches!(record, JournalRecord::SnapshotApplied { .. }) && size != before
    })
}

/// The tables and the refcounts of a program's image.
struct Seen<'t> {
    image: &'t Image,
    header: Header,
    snapshots: Vec<(SnapshotEntry, SnapshotExtra)>,
    /// The refcounts that are not 0, by cluster.
    counts: BTreeMap<u64, u64>,
}

impl<'t> Seen<'t> {
    fn in_program(trace: &'t Trace) -> Self {
        let image = &trace.images.top().image;
        let header = Head::read(image).unwrap().header;
        let mut snapshots = Vec::new();
        each_entry(image, &header, |_, at, entry| {
            snapshots.push((*entry, extra_of(image, at, entry)?));
            Ok(())
        })
        .unwrap();
        let mut seen = Self { image, header, snapshots, counts: BTreeMap::new() };
        let Geometry { cluster_size, refcount_order, .. } = seen.header.geometry;
        let length = cluster_size.bytes() * u64::from(seen.header.refcount_table_clusters);
        let per_block = seen.header.geometry.refcounts_per_block();
        for (index, word) in seen.words(seen.header.refcount_table_offset, length) {
            let mut block = vec![0; cluster_size.bytes_usize()];
            seen.image.read_at(refcount_block_offset(word).unwrap(), &mut block).unwrap();
            each_refcount_run(&block, refcount_order, |first, clusters, count| {
                let all = (first..first + clusters).map(|at| (index * per_block + at, count));
                seen.counts.extend(all);
            });
        }
        seen
    }

    /// Returns the words of a table that are not 0, with their indices.
    fn words(&self, table: HostOffset, length: u64) -> Vec<(u64, u64)> {
        let mut words = Vec::new();
        let range = table..table + length.next_multiple_of(GRAIN_BYTES);
        let all = each_data(&self.image, range, &mut vec![0; 1 << 15], |data| {
            let first = data.offset.distance_from(table).unwrap() / 8;
            let chunks = (first..length / 8).zip(data.bytes.as_chunks::<8>().0);
            let chunks = chunks.map(|(at, word)| (at, u64::from_be_bytes(*word)));
            words.extend(chunks.filter(|(_, word)| *word != 0));
            Ok::<_, StorageError>(ControlFlow::Continue(()))
        });
        let _ = all.unwrap();
        words
    }

    fn any(&self, wanted: impl Fn(&SnapshotEntry, &SnapshotExtra) -> bool) -> bool {
        self.snapshots.iter().any(|(entry, extra)| wanted(entry, extra))
    }

    /// Returns the refcount of each L2 table of a snapshot.
    fn table_counts(&self) -> Vec<u64> {
        let cluster_size = self.header.geometry.cluster_size;
        let tables = self
            .snapshots
            .iter()
            .flat_map(|(entry, _)| self.words(entry.l1_offset, u64::from(entry.l1_entries) * 8));
        let count = |(_, word)| {
            let table = L1Entry(word).table().unwrap();
            // A count that is out of date may be missing.
            self.counts.get(&cluster_size.host_cluster(table).get()).copied().unwrap_or(0)
        };
        tables.map(count).collect()
    }

    /// Reports whether the active L1 table has entries past the end of the disk.
    fn active_vm_state(&self) -> bool {
        let Header { geometry, size_bytes, l1_offset, l1_entries, .. } = self.header;
        let last = self.words(l1_offset, u64::from(l1_entries) * 8).last().copied();
        last.is_some_and(|(index, _)| index >= geometry.l1_entries_for(size_bytes))
    }
}
