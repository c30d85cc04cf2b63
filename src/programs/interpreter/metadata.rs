//! Operations and requests about snapshots and persistent dirty bitmaps. Requests ask for nothing that QEMU refuses.

use crate::formats::qcow2::bitmap::bits_for;
use crate::formats::qcow2::geometry::Version;
use crate::images::qcow2::{Fill, Leaving, NewBitmap, SnapshotDetails, VmState};
use crate::programs::journal::JournalRecord;
use crate::programs::operand::{BitmapFlags, BytesKind, Extra, Few, Length, NameLength, Number};
use crate::programs::request::{BitmapChange, WriteRequest};

use super::state::{WritingBitmap, selected};
use super::writing::SECTOR_BYTES;
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

impl Vm {
    pub(super) fn bitmap(
        &mut self,
        granularity: Number<9, 31>,
        flags: BitmapFlags,
        name: NameLength,
    ) -> Effect {
        let Self { given, builder, .. } = self;
        let given_name = given.waiting(BytesKind::Name);
        let given_name = given_name.and_then(|bytes| builder.bitmap_name(bytes));
        let made = builder.bitmap(NewBitmap {
            granularity_bits: granularity.get(),
            in_use: flags.has(BitmapFlags::IN_USE),
            auto: flags.has(BitmapFlags::AUTO),
            name_bytes: name.get(),
            name: given_name,
        });
        if made {
            given.use_up(BytesKind::Name);
        }
        effect(made)
    }

    pub(super) fn fill_bitmap(
        &mut self,
        index: Few<0, 15>,
        entry: u16,
        entries: Number<1, 32>,
        fill: Fill,
    ) -> Effect {
        let index = self.bitmap_index(index);
        let write = self.next_write();
        let count = u64::from(entries.get()).min(self.touchable);
        self.touchable -= count;
        effect(self.builder.fill_bitmap(index, u64::from(entry), count, fill, write))
    }

    pub(super) fn delete_bitmap(&mut self, index: Few<0, 15>, leaving: Leaving) -> Effect {
        let index = self.bitmap_index(index);
        effect(self.builder.delete_bitmap(index, leaving))
    }

    /// Returns the number of the existing bitmap that `index` selects.
    pub(super) fn bitmap_index(&self, index: Few<0, 15>) -> usize {
        usize::from(index.get()) % self.builder.bitmap_count().max(1)
    }
}

/// Requests about bitmaps.
impl Vm {
    /// Begins the writing with the bitmaps of the build.
    pub(super) fn begin_bitmaps(&mut self) {
        let built = self.builder.bitmap_properties().zip(0..);
        let built = built.map(|((granularity_bits, in_use), number)| WritingBitmap {
            number,
            granularity_bits,
            in_use,
        });
        self.writing.bitmaps.extend(built);
        // A program has few bitmaps.
        self.writing.next_bitmap = self.writing.bitmaps.len() as u32;
    }

    /// Asks for a bitmap, if there is room for it. Only version 3 has bitmaps.
    pub(super) fn request_bitmap(
        &mut self,
        size_bytes: u64,
        granularity_bits: u8,
        is_enabled: bool,
    ) -> Effect {
        let plan = self.builder.plan();
        let is_new = plan.geometry.version == Version::V3;
        let is_whole = plan.size_bytes.is_multiple_of(SECTOR_BYTES);
        let is_full = self.writing.bitmaps.len() >= self.limits.bitmaps;
        if !is_new || !is_whole || is_full || !self.bits_allowed(granularity_bits, size_bytes) {
            return Effect::None;
        }
        let number = self.writing.next_bitmap;
        let change = BitmapChange::Add { granularity_bits, is_enabled };
        let made = self.request(WriteRequest::ChangeBitmap { number, change });
        if made == Effect::Changed {
            self.writing.next_bitmap += 1;
            let bitmap = WritingBitmap { number, granularity_bits, in_use: false };
            self.writing.bitmaps.push(bitmap);
        }
        made
    }

    /// Asks to clear a bitmap, to enable or to disable it, if it was saved correctly.
    pub(super) fn request_bitmap_change(&mut self, index: Few<0, 15>, fill: Fill) -> Effect {
        let Some(bitmap) = selected(&self.writing.bitmaps, index) else { return Effect::None };
        if bitmap.in_use {
            return Effect::None;
        }
        let change = match fill {
            Fill::Zeroes => BitmapChange::Clear,
            Fill::Ones => BitmapChange::Enable,
            Fill::Bits => BitmapChange::Disable,
        };
        self.request(WriteRequest::ChangeBitmap { number: bitmap.number, change })
    }

    pub(super) fn request_removed_bitmap(&mut self, index: Few<0, 15>) -> Effect {
        let Some(bitmap) = selected(&self.writing.bitmaps, index) else { return Effect::None };
        let change = BitmapChange::Remove;
        let made = self.request(WriteRequest::ChangeBitmap { number: bitmap.number, change });
        if made == Effect::Changed {
            self.writing.bitmaps.retain(|other| other.number != bitmap.number);
        }
        made
    }

    /// Reports whether all bitmaps may follow the disk to a size. QEMU does not resize a disk with a bitmap that was
    /// not saved correctly.
    pub(super) fn bitmaps_allow(&self, size_bytes: u64) -> bool {
        self.writing
            .bitmaps
            .iter()
            .all(|it| !it.in_use && self.bits_allowed(it.granularity_bits, size_bytes))
    }

    /// Reports whether a bitmap of a disk has a bit at least, and no more than a program may have.
    fn bits_allowed(&self, granularity_bits: u8, size_bytes: u64) -> bool {
        (1..=self.limits.bitmap_bits).contains(&bits_for(size_bytes, granularity_bits))
    }
}

#[cfg(test)]
mod tests {
    use crate::images::limits::Limits;
    use crate::programs::text::assemble;

    use super::*;

    /// Returns the requests of a program with operations before its first request, and behind it.
    fn requests(version: u32, before: &[&str], behind: &[&str]) -> Vec<WriteRequest> {
        let text = format!(
            "image version={version} cluster_bits=9 refcount_order=4 features=none size=8<<9+0 \
             rng_seed=0 blocks=append table=append tolerance=0\n{}\n\
             write_at at=start+0 inside=0 length=0<<0\n{}",
            before.join("\n"),
            behind.join("\n")
        );
        let program = assemble(&text).unwrap();
        let mut vm = Vm::new();
        vm.begin(&program.prologue, Limits::WRITTEN);
        for operation in &program.operations {
            vm.step(*operation);
        }
        vm.requests().to_vec()
    }

    fn change(number: u32, change: BitmapChange) -> WriteRequest {
        WriteRequest::ChangeBitmap { number, change }
    }

    const BUILT: &str = "bitmap granularity=9 flags=auto name=4";

    #[test]
    fn bitmaps_are_named_by_their_numbers() {
        let behind = [
            "bitmap granularity=16 flags=none name=0",
            "fill_bitmap index=1 entry=0 entries=1 fill=zeroes",
            "delete_bitmap index=0 leaving=nothing",
            "fill_bitmap index=0 entry=0 entries=1 fill=ones",
            "bitmap granularity=9 flags=auto name=0",
            "fill_bitmap index=1 entry=0 entries=1 fill=bits",
        ];
        let add = |granularity_bits, is_enabled| BitmapChange::Add { granularity_bits, is_enabled };
        let expected = [
            change(1, add(16, false)),
            change(1, BitmapChange::Clear),
            change(0, BitmapChange::Remove),
            change(1, BitmapChange::Enable),
            change(2, add(9, true)),
            change(2, BitmapChange::Disable),
        ];
        assert_eq!(requests(3, &[BUILT], &behind), expected);
        assert_eq!(requests(2, &[], &behind), []);
    }

    #[test]
    fn a_bitmap_in_use_is_only_removed() {
        let in_use = "bitmap granularity=9 flags=in_use,auto name=4";
        let behind = [
            "fill_bitmap index=0 entry=0 entries=1 fill=zeroes",
            "resize size=9<<9+0",
            "delete_bitmap index=0 leaving=nothing",
            "resize size=9<<9+0",
        ];
        let expected =
            [change(0, BitmapChange::Remove), WriteRequest::Resize { size_bytes: 9 << 9 }];
        assert_eq!(requests(3, &[in_use], &behind), expected);
    }

    #[test]
    fn no_snapshot_is_applied_beside_bitmaps() {
        let behind = ["apply_snapshot index=0", "delete_bitmap index=0 leaving=nothing"];
        let with = requests(3, &["snapshot", BUILT], &behind);
        assert_eq!(with, [change(0, BitmapChange::Remove)]);
        let without = requests(3, &["snapshot"], &behind);
        assert_eq!(without, [WriteRequest::ApplySnapshot { number: 0 }]);
    }
}
