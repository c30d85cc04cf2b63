//! Operations on snapshots.

use crate::images::qcow2::{SnapshotDetails, VmState};
use crate::programs::journal::JournalRecord;
use crate::programs::operand::{BytesKind, Extra, Few, Length, Number};

use super::{Effect, Vm, effect};

impl Vm {
    pub(super) fn snapshot(&mut self, details: SnapshotDetails) -> Effect {
        let Self { given, builder, .. } = self;
        let id = given.waiting(BytesKind::Id).and_then(|bytes| builder.snapshot_id(bytes));
        let name = given.waiting(BytesKind::Name).and_then(|bytes| builder.snapshot_name(bytes));
        let taken = builder.snapshot(SnapshotDetails { id, name, ..details });
        if taken {
            given.use_up(BytesKind::Id);
            given.use_up(BytesKind::Name);
            self.journal.records.push(JournalRecord::SnapshotTaken);
        }
        effect(taken)
    }

    /// Takes a snapshot with extra data, VM state, an id and a name.
    pub(super) fn snapshot_with(
        &mut self,
        extra: Extra,
        (vm, spread): (Number<0, 15>, Number<0, 31>),
        (id, name): (Number<0, 254>, Length),
    ) -> Effect {
        let vm_state = self.vm_state(vm.get(), spread.get());
        self.snapshot(SnapshotDetails {
            extra_bytes: u32::from(extra.get()),
            vm_state,
            id_bytes: u16::from(id.get()),
            name_bytes: name.get(),
            timed: true,
            ..SnapshotDetails::PLAIN
        })
    }

    pub(super) fn delete_snapshot(&mut self, index: Few<0, 15>) -> Effect {
        let index = self.snapshot_at(index);
        let deleted = self.builder.delete_snapshot(index);
        if deleted {
            self.journal.records.push(JournalRecord::SnapshotDeleted { index });
        }
        effect(deleted)
    }

    pub(super) fn apply_snapshot(&mut self, index: Few<0, 15>) -> Effect {
        let index = self.snapshot_at(index);
        let applied = self.builder.apply_snapshot(index);
        if applied {
            self.journal.records.push(JournalRecord::SnapshotApplied { index });
        }
        effect(applied)
    }

    /// Returns the number of the existing snapshot that `index` selects.
    fn snapshot_at(&self, index: Few<0, 15>) -> usize {
        usize::from(index.get()) % self.builder.snapshot_count().max(1)
    }

    /// Returns a VM state of at most `clusters` clusters, limited by the clusters that operations may still touch.
    fn vm_state(&mut self, clusters: u8, spread: u8) -> Option<VmState> {
        let clusters = u64::from(clusters).min(self.touchable);
        self.touchable -= clusters;
        let (spread_bits, write) = (u32::from(spread), self.next_write());
        (clusters > 0).then_some(VmState { clusters, spread_bits, write })
    }
}
