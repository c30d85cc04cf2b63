//! The writing: from the first operation on that only engines that write know, operations ask the engine to change the
//! disk, and the image that the program has built stays as it is.

use std::ops::Range;

use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::GuestOffset;
use crate::formats::qcow2::geometry::{Compression, Version};
use crate::images::qcow2::Sizes;
use crate::programs::operand::{
    At, BitmapFlags, Count, CutKind, DataContent, Few, Gap, Inside, OldBytes, Size, SyncKind,
};
use crate::programs::operation::{Class, Operation};
use crate::programs::request::{FileFault, NewImage, RequestContent, Schedule, WriteRequest};

use super::state::{WritingSnapshot, selected};
use super::{Effect, Vm, effect};

/// The unit of the size of a disk.
pub(super) const SECTOR_BYTES: u64 = 512;

impl Vm {
    /// Returns the requests to an engine that has opened the last image for writing.
    pub fn requests(&self) -> &[WriteRequest] {
        &self.writing.requests
    }

    /// Returns the image that the engine creates before the requests, if the program asks for it and has built nothing.
    /// If the engine does not create images, it writes to the one that the program has built.
    pub fn new_image(&self) -> Option<NewImage> {
        let plan = self.builder.plan();
        let geometry = &plan.geometry;
        self.writing.is_created.then_some(NewImage {
            version: if geometry.version == Version::V2 { 2 } else { 3 },
            cluster_bits: geometry.cluster_size.bits(),
            refcount_bits: 1 << geometry.refcount_order,
            extended_l2: geometry.extended_l2,
            is_zstd: geometry.compression == Compression::Zstd,
            size_bytes: plan.virtual_size_bytes(),
        })
    }

    /// Reports whether `operation` belongs to the writing.
    pub(super) fn is_writing(&self, operation: &Operation) -> bool {
        self.writing.size_bytes.is_some() || matches!(operation.class(), Class::Requests(_))
    }

    /// Runs an operation of the writing, which the first one begins.
    pub(super) fn step_writing(&mut self, operation: Operation) -> Effect {
        let plan = self.builder.plan();
        if self.limits.requests == 0 || plan.file.format != ImageFormat::Qcow2 {
            return Effect::None;
        }
        let size_bytes = match self.writing.size_bytes {
            Some(size_bytes) => size_bytes,
            None => self.begin_writing(),
        };
        match operation {
            Operation::WriteAt { .. }
            | Operation::Write { .. }
            | Operation::WriteAs { .. }
            | Operation::WriteDataAt { .. }
            | Operation::WriteData { .. }
            | Operation::ReadAt { .. }
            | Operation::ZeroAt { .. }
            | Operation::Zero { .. }
            | Operation::Discard { .. } => self.request_for_bytes(operation),
            Operation::InFlight { requests, at_once, order } if self.limits.in_flight > 1 => {
                let (requests, at_once) = (requests.get(), at_once.get());
                self.request(WriteRequest::InFlight(Schedule { requests, at_once, order }))
            }
            Operation::Resize { size } => self.request_resize(size_bytes, size),
            Operation::Snapshot {} | Operation::SnapshotWith { .. } => {
                self.request_snapshot(size_bytes)
            }
            Operation::ApplySnapshot { index } => self.request_applied_snapshot(size_bytes, index),
            Operation::DeleteSnapshot { index } => self.request_deleted_snapshot(index),
            Operation::Bitmap { granularity, flags, .. } => {
                let is_enabled = flags.has(BitmapFlags::AUTO);
                self.request_bitmap(size_bytes, granularity.get(), is_enabled)
            }
            Operation::FillBitmap { index, fill, .. } => self.request_bitmap_change(index, fill),
            Operation::DeleteBitmap { index, .. } => self.request_removed_bitmap(index),
            Operation::Sync { kind, choice } => self.request_sync(kind, choice),
            Operation::FailFile { .. } => self.request_failures(operation),
            Operation::Device { spare, old } => self.request_device(spare, old),
            Operation::Crash { kind, choice } => {
                self.request_cut(WriteRequest::Crash { kind, choice })
            }
            Operation::Checkpoint {} => {
                let wants =
                    self.writing.requests.last().is_some_and(|it| *it != WriteRequest::Reopen);
                match wants && self.checkpoint() == Effect::Checkpoint {
                    true => self.request(WriteRequest::Reopen),
                    false => Effect::None,
                }
            }
            // An attack damages the image that the program has built, before the engine opens it.
            _ => self.step_attack(operation),
        }
    }

    /// Makes a request to read or to change bytes.
    fn request_for_bytes(&mut self, operation: Operation) -> Effect {
        match operation {
            Operation::WriteAt { at, inside, length } => {
                let range = self.bytes_at(at, inside, length);
                self.request_write(range, RequestContent::Fresh)
            }
            Operation::Write { at, clusters } | Operation::WriteAs { at, clusters, .. } => {
                let range = self.whole_clusters(at, clusters);
                self.request_write(range, RequestContent::Fresh)
            }
            Operation::WriteDataAt { at, length, content } => {
                self.request_data(self.bytes_at(at, Inside::default(), length), content, 0)
            }
            Operation::WriteData { at, clusters, content, value } => {
                let range = self.whole_clusters(at, clusters);
                self.request_data(range, content, value)
            }
            Operation::ReadAt { at, length } => {
                self.request_read(self.bytes_at(at, Inside::default(), length))
            }
            Operation::ZeroAt { at, inside, length } => {
                let range = self.bytes_at(at, inside, length);
                self.request_zeroes(range)
            }
            Operation::Zero { at, clusters, .. } => {
                let range = self.whole_clusters(at, clusters);
                self.request_zeroes(range)
            }
            Operation::Discard { at, clusters } => {
                let range = self.whole_clusters(at, clusters);
                self.request_range(range, |guest, length_bytes| WriteRequest::Discard {
                    guest,
                    length_bytes,
                })
            }
            _ => Effect::None,
        }
    }

    /// Begins the writing. Returns the size of the disk.
    fn begin_writing(&mut self) -> u64 {
        let (plan, sizes) = (self.builder.plan(), self.builder.snapshot_sizes_bytes());
        let snapshots = sizes.zip(0..).map(|(size_bytes, number)| WritingSnapshot {
            number,
            size_bytes,
            built_index: usize::try_from(number).ok(),
        });
        self.writing.snapshots.extend(snapshots);
        // A program has few snapshots.
        self.writing.next_snapshot = self.writing.snapshots.len() as u32;
        // A new image has no data file.
        let is_empty = !self.has_built && self.layers_below == 0 && plan.data_file.is_none();
        self.writing.is_created = is_empty && !plan.rng_seed.is_multiple_of(2);
        let size_bytes = plan.virtual_size_bytes();
        self.writing.size_bytes = Some(size_bytes);
        self.begin_bitmaps();
        size_bytes
    }

    /// Returns the bytes that the operands of a request select.
    fn bytes_at(&self, at: At, inside: Inside, length: Gap) -> Range<u64> {
        let cluster_bytes = self.builder.plan().geometry.cluster_size.bytes();
        let first = self.position(at).saturating_mul(cluster_bytes);
        let start = first.saturating_add(inside.bytes(cluster_bytes));
        start..start.saturating_add(length.units())
    }

    fn whole_clusters(&self, at: At, clusters: Count) -> Range<u64> {
        let cluster_bytes = self.builder.plan().geometry.cluster_size.bytes();
        // Whole clusters, as many as the requests may still change.
        let clusters = clusters.get().min(self.writing.changeable_bytes / cluster_bytes);
        let start = self.position(at).saturating_mul(cluster_bytes);
        start..start.saturating_add(clusters.saturating_mul(cluster_bytes))
    }

    /// Makes a request to write bytes with a given content.
    fn request_data(&mut self, range: Range<u64>, content: DataContent, value: u8) -> Effect {
        let made = self.request_write(range, self.request_content(content, value));
        if made != Effect::None {
            self.use_up_data(content);
        }
        made
    }

    fn request_content(&self, content: DataContent, value: u8) -> RequestContent {
        match content {
            DataContent::Deep => RequestContent::Fresh,
            DataContent::Zeros => RequestContent::Zeros,
            DataContent::Same => RequestContent::Same,
            DataContent::Former => RequestContent::Former,
            DataContent::Own | DataContent::Repeat | DataContent::Entries | DataContent::Counts => {
                let data = self.unstamped_data(content, value);
                data.map_or(RequestContent::Fresh, RequestContent::Unstamped)
            }
        }
    }

    fn request_write(&mut self, range: Range<u64>, content: RequestContent) -> Effect {
        self.request_bytes(range, |guest, length_bytes| WriteRequest::Write {
            guest,
            length_bytes,
            content,
        })
    }

    /// Makes a request that passes bytes: at most as many as requests may still write.
    fn request_bytes(
        &mut self,
        range: Range<u64>,
        request: impl FnOnce(GuestOffset, u32) -> WriteRequest,
    ) -> Effect {
        let before = self.writing.changeable_bytes;
        let end = range.end.min(range.start.saturating_add(self.writing.writable_bytes));
        // A limit below 4 GiB keeps the length in range.
        let made = self.request_range(range.start..end, |guest, length| {
            request(guest, u32::try_from(length).unwrap_or(u32::MAX))
        });
        self.writing.writable_bytes -= before - self.writing.changeable_bytes;
        made
    }

    /// Makes a request to read bytes. It counts like a write, so that the reads of a program are bounded.
    fn request_read(&mut self, range: Range<u64>) -> Effect {
        self.request_bytes(range, |guest, length_bytes| WriteRequest::Read { guest, length_bytes })
    }

    fn request_zeroes(&mut self, range: Range<u64>) -> Effect {
        self.request_range(range, |guest, length_bytes| WriteRequest::WriteZeroes {
            guest,
            length_bytes,
        })
    }

    /// Makes a request for the part of `range` that lies on the disk, and that requests may still change.
    fn request_range(
        &mut self,
        range: Range<u64>,
        request: impl FnOnce(GuestOffset, u64) -> WriteRequest,
    ) -> Effect {
        let end = range.end.min(self.writing.size_bytes.unwrap_or(0));
        let length = end.saturating_sub(range.start).min(self.writing.changeable_bytes);
        if length == 0 {
            return Effect::None;
        }
        let made = self.request(request(GuestOffset::new(range.start), length));
        if made == Effect::Changed {
            self.writing.changeable_bytes -= length;
            let cluster_size = self.builder.plan().geometry.cluster_size;
            self.last = cluster_size.clusters_for(range.start.saturating_add(length));
        }
        made
    }

    /// Makes a request for another size. A disk grows by at most as many bytes as requests may still change.
    fn request_resize(&mut self, size_bytes: u64, wanted: Size) -> Effect {
        let most = size_bytes.saturating_add(self.writing.changeable_bytes);
        let wanted = wanted.bytes(self.builder.max_size_bytes()).min(most);
        let wanted = wanted / SECTOR_BYTES * SECTOR_BYTES;
        // A snapshot in a version 2 image need not store the size of its disk. QEMU refuses to resize such an image. If
        // a disk ends within a sector, its last bytes appear when it grows.
        let plan = self.builder.plan();
        let is_old = plan.geometry.version == Version::V2 && self.writing.next_snapshot > 0;
        let is_fixed = is_old || !plan.size_bytes.is_multiple_of(SECTOR_BYTES);
        // Clusters past the end of the disk would appear when it grows.
        let shows_more = wanted > size_bytes && self.builder.has_beyond();
        if wanted == size_bytes || is_fixed || shows_more || !self.bitmaps_allow(wanted) {
            return Effect::None;
        }
        let made = self.request(WriteRequest::Resize { size_bytes: wanted });
        if made == Effect::Changed {
            self.writing.changeable_bytes -= wanted.saturating_sub(size_bytes);
            self.writing.size_bytes = Some(wanted);
        }
        made
    }

    /// Asks for a snapshot, if there is room for it. As in the build, an image with a data file gets no snapshot.
    fn request_snapshot(&mut self, size_bytes: u64) -> Effect {
        let number = self.writing.next_snapshot;
        let is_full = self.writing.snapshots.len() >= self.limits.snapshots;
        let has_data_file = self.builder.plan().data_file.is_some();
        if is_full || has_data_file || !self.counts_hold(number + 1) {
            return Effect::None;
        }
        let made = self.request(WriteRequest::TakeSnapshot { number });
        if made == Effect::Changed {
            self.writing.next_snapshot += 1;
            let built_index = None;
            self.writing.snapshots.push(WritingSnapshot { number, size_bytes, built_index });
        }
        made
    }

    /// Reports whether refcounts are wide enough for `snapshots`, those of the build and all that are taken. No state
    /// of the disk has more references to a cluster than the whole image has when the writing begins. While a snapshot
    /// is applied, there are two states of the disk beside those of all snapshots.
    fn counts_hold(&self, snapshots: u32) -> bool {
        let built = self.builder.snapshot_count() as u64;
        // `max_references` already contains the snapshots of the build.
        let states = u64::from(snapshots).saturating_sub(built).saturating_add(2 + built.min(1));
        let most = self.builder.max_references().saturating_mul(states);
        most <= self.builder.plan().geometry.max_refcount()
    }

    /// Asks to apply a snapshot, if QEMU does so without other effects. It changes the size of the disk to that of the
    /// snapshot, which it refuses in a version 2 image and for sizes that are not whole sectors. Clusters past the end
    /// of a disk, VM state among them, would appear or be lost when the size changes then.
    fn request_applied_snapshot(&mut self, size_bytes: u64, index: Few<0, 15>) -> Effect {
        let Some(snapshot) = selected(&self.writing.snapshots, index) else { return Effect::None };
        let plan = self.builder.plan();
        let is_whole = |size: u64| size.is_multiple_of(SECTOR_BYTES);
        let is_whole = is_whole(plan.size_bytes) && is_whole(snapshot.size_bytes);
        let may_resize = plan.geometry.version == Version::V3 && !self.builder.has_beyond();
        // QEMU applies no snapshot while bitmaps record changes.
        let has_bitmaps = !self.writing.bitmaps.is_empty();
        let fits = snapshot.size_bytes == size_bytes || may_resize;
        let ends = snapshot.built_index.is_none_or(|index| self.builder.snapshot_ends(index));
        if has_bitmaps
            || !(is_whole && fits && ends && self.counts_hold(self.writing.next_snapshot))
        {
            return Effect::None;
        }
        let made = self.request(WriteRequest::ApplySnapshot { number: snapshot.number });
        if made == Effect::Changed {
            self.writing.size_bytes = Some(snapshot.size_bytes);
        }
        made
    }

    fn request_deleted_snapshot(&mut self, index: Few<0, 15>) -> Effect {
        let Some(snapshot) = selected(&self.writing.snapshots, index) else { return Effect::None };
        let made = self.request(WriteRequest::DeleteSnapshot { number: snapshot.number });
        if made == Effect::Changed {
            self.writing.snapshots.retain(|other| other.number != snapshot.number);
        }
        made
    }

    fn request_failures(&mut self, operation: Operation) -> Effect {
        let Operation::FailFile { of, before, error, failures } = operation else {
            return Effect::None;
        };
        let fault = FileFault { of, before, error, failures };
        let is_one = |request: &&WriteRequest| matches!(request, WriteRequest::FailFile(_));
        let faults = self.writing.requests.iter().filter(is_one).count();
        match faults < self.limits.cuts {
            true => self.request(WriteRequest::FailFile(fault)),
            false => Effect::None,
        }
    }

    /// Lays the image on a device, before the first request. An image on a device has been built.
    fn request_device(&mut self, spare: Few<0, 63>, old: OldBytes) -> Effect {
        if !self.writing.requests.is_empty() {
            return Effect::None;
        }
        self.writing.is_created = false;
        self.request(WriteRequest::Device { spare_clusters: spare.get().into(), old })
    }

    fn request_sync(&mut self, kind: SyncKind, choice: u16) -> Effect {
        let kind = match kind {
            SyncKind::Flush => return self.request(WriteRequest::Flush),
            SyncKind::Cut => CutKind::Power,
            SyncKind::Kill => CutKind::Process,
        };
        self.request_cut(WriteRequest::Cut { kind, choice })
    }

    fn request_cut(&mut self, cut: WriteRequest) -> Effect {
        let cuts = self.writing.requests.iter().filter(|request| request.is_cut()).count();
        match cuts < self.limits.cuts {
            true => self.request(cut),
            false => Effect::None,
        }
    }

    pub(super) fn request(&mut self, request: WriteRequest) -> Effect {
        let room = self.writing.requests.len() < self.limits.requests;
        self.writing.requests.extend(room.then_some(request));
        effect(room)
    }
}

#[cfg(test)]
mod tests {
    use crate::images::limits::Limits;
    use crate::programs::text::assemble;

    use super::*;

    /// Returns the machine after a program with this first line, without its beginning, and these operations.
    fn run(image: &str, operations: &[&str]) -> Vm {
        let line = format!(
            "image cluster_bits=9 features=none blocks=append table=append tolerance=0 {image}\n{}",
            operations.join("\n")
        );
        let program = assemble(&line).unwrap();
        let mut vm = Vm::new();
        vm.begin(&program.prologue, Limits::WRITTEN);
        for operation in &program.operations {
            vm.step(*operation);
        }
        vm
    }

    const V3: &str = "version=3 refcount_order=4 size=8<<9+0 rng_seed=0";
    const BEGIN: &str = "write_at at=start+0 inside=0 length=0<<0";

    #[test]
    fn snapshots_are_named_by_their_numbers() {
        let vm = run(
            V3,
            &[
                "snapshot",
                BEGIN,
                "snapshot",
                "resize size=9<<9+0",
                "snapshot",
                "delete_snapshot index=1",
                "apply_snapshot index=1",
                "snapshot",
                "apply_snapshot index=0",
                "delete_snapshot index=3",
            ],
        );
        let expected = [
            WriteRequest::TakeSnapshot { number: 1 },
            WriteRequest::Resize { size_bytes: 9 << 9 },
            WriteRequest::TakeSnapshot { number: 2 },
            WriteRequest::DeleteSnapshot { number: 1 },
            WriteRequest::ApplySnapshot { number: 2 },
            WriteRequest::TakeSnapshot { number: 3 },
            WriteRequest::ApplySnapshot { number: 0 },
            WriteRequest::DeleteSnapshot { number: 0 },
        ];
        assert_eq!(vm.requests(), expected);
        assert_eq!(vm.writing.size_bytes, Some(8 << 9));
    }

    #[test]
    fn a_snapshot_needs_wide_refcounts() {
        let taken = |order: u32| {
            let image = format!("version=3 refcount_order={order} size=8<<9+0 rng_seed=0");
            let requests = ["write at=start+0 clusters=2", BEGIN, "snapshot", "snapshot"];
            run(&image, &requests).requests().len()
        };
        // One reference of the disk, one of the snapshot, and one while it is applied: up to 3.
        assert_eq!([0, 1, 2].map(taken), [0, 1, 2]);
    }

    #[test]
    fn a_version_2_disk_keeps_its_size_after_a_snapshot() {
        let image = "version=2 refcount_order=4 size=8<<9+0 rng_seed=0";
        let larger = "resize size=9<<9+0";
        let vm = run(image, &[BEGIN, larger, "snapshot", "resize size=7<<9+0", "snapshot"]);
        let expected = [
            WriteRequest::Resize { size_bytes: 9 << 9 },
            WriteRequest::TakeSnapshot { number: 0 },
            WriteRequest::TakeSnapshot { number: 1 },
        ];
        assert_eq!(vm.requests(), expected);
    }

    #[test]
    fn a_snapshot_with_more_than_its_disk_is_not_applied() {
        let vm_state = "snapshot_with extra=16 vm=1 spread=0 id=1 name=1";
        let applied = |operations: &[&str]| {
            let vm = run(V3, operations);
            vm.requests().iter().any(|it| matches!(it, WriteRequest::ApplySnapshot { .. }))
        };
        assert!(!applied(&[vm_state, BEGIN, "apply_snapshot index=0"]));
        assert!(applied(&["snapshot", BEGIN, "apply_snapshot index=0"]));
        // Nor if the size changes while the disk maps clusters past its end.
        let beyond = "beyond table=0 distance=0 clusters=1 kind=data";
        let resized = ["snapshot", "resize size=9<<9+0", beyond, BEGIN, "apply_snapshot index=0"];
        assert!(!applied(&resized));
    }

    #[test]
    fn the_engine_creates_an_image_that_the_program_has_not_built() {
        let odd = "version=3 refcount_order=5 size=8<<9+100 rng_seed=7";
        let created = run(odd, &[BEGIN]).new_image();
        let expected = NewImage {
            version: 3,
            cluster_bits: 9,
            refcount_bits: 32,
            extended_l2: false,
            is_zstd: false,
            size_bytes: 8 << 9,
        };
        assert_eq!(created, Some(expected));
        assert_eq!(run(V3, &[BEGIN]).new_image(), None);
        assert_eq!(run(odd, &["write at=start+0 clusters=1", BEGIN]).new_image(), None);
        assert_eq!(run(odd, &[]).new_image(), None);
    }
}
