//! Operations that change what a guest reads, and the operations that an image of each format has.

use crate::disk::clusters::{GuestCluster, SubclusterRange};
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::images::content::{Look, Shape, SubclusterChange, WriteNumber};
use crate::images::format::list::drawer;
use crate::images::format::looks;
use crate::images::qcow2::PayloadFrame;
use crate::images::qcow2::Sizes;
use crate::programs::journal::JournalRecord;
use crate::programs::operand::{Anchor, At, Change, Count, Few, Hidden, Keep, Size, Skew};
use crate::programs::operation::Operation;

use super::{Effect, Vm, effect};

impl Vm {
    pub(super) fn write(&mut self, at: At, clusters: Count) -> Effect {
        if self.compressing().is_some() {
            return self.compress(at, clusters, Shape::Zeros, Skew::Packed);
        }
        let write = self.next_write();
        self.write_each(at, clusters, |_, _| write)
    }

    /// Writes clusters that have a look, as far as the image allows that.
    pub(super) fn write_as(&mut self, at: At, clusters: Count, look: Look) -> Effect {
        if self.compressing().is_some() {
            return self.write(at, clusters);
        }
        let write = self.next_write();
        let is_footer = looks::made(look).form.is_footer;
        self.write_each(at, clusters, |vm, cluster| match vm.allows_look(cluster, is_footer) {
            true => write.with_look(look),
            false => write,
        })
    }

    /// Writes clusters, each with the number that `number` returns.
    pub(super) fn write_each(
        &mut self,
        at: At,
        clusters: Count,
        mut number: impl FnMut(&mut Self, GuestCluster) -> WriteNumber,
    ) -> Effect {
        self.for_clusters(at, clusters, |vm, cluster| {
            let write = number(vm, cluster);
            let host = vm.builder.write(cluster, write);
            if let Some(host) = host {
                vm.journal.written(cluster, vm.file_offset(host), write);
            }
            host.is_some()
        })
    }

    pub(super) fn zero(&mut self, at: At, clusters: Count, keep: Keep) -> Effect {
        let file = self.builder.plan().file;
        if !drawer(file.format).has_zeros(&file) {
            return match self.builder.plan().backing {
                // An unallocated cluster reads as zeros.
                None => self.discard(at, clusters),
                Some(_) => Effect::None,
            };
        }
        let keep = keep == Keep::Yes && drawer(file.format).keeps_place_of_zeros();
        self.for_clusters(at, clusters, |vm, cluster| {
            let zeroed = vm.builder.zero(cluster, keep);
            if let Some(kept) = zeroed {
                let kept = kept.map(|host| vm.file_offset(host));
                vm.journal.records.push(JournalRecord::Zeroed { cluster, kept });
            }
            zeroed.is_some()
        })
    }

    pub(super) fn discard(&mut self, at: At, clusters: Count) -> Effect {
        self.for_clusters(at, clusters, |vm, cluster| {
            let discarded = vm.builder.discard(cluster);
            if discarded {
                vm.journal.records.push(JournalRecord::Discarded { cluster });
            }
            discarded
        })
    }

    pub(super) fn subclusters(
        &mut self,
        at: At,
        (first, count, stride): (Few<0, 31>, Few<1, 32>, Few<1, 8>),
        change: Change,
    ) -> Effect {
        let [first, count, stride] = [first.get(), count.get(), stride.get()].map(u32::from);
        let range = SubclusterRange { first, count, stride };
        let change = match change {
            Change::Write => SubclusterChange::Write(self.next_write()),
            Change::Zero => SubclusterChange::Zero,
            Change::Unallocate => SubclusterChange::Unallocate,
        };
        self.for_clusters(at, Count::ONE, |vm, cluster| {
            let changed = vm.builder.change_subclusters(cluster, range, change);
            if let Some(host) = changed {
                vm.journal.records.push(JournalRecord::Subclusters {
                    cluster,
                    range,
                    change,
                    host,
                });
            }
            changed.is_some()
        })
    }

    pub(super) fn resize(&mut self, size: Size) -> Effect {
        let wanted = size.bytes(self.builder.max_size_bytes());
        let Some(size_bytes) = self.builder.resize(wanted) else { return Effect::None };
        self.journal.records.push(JournalRecord::Resized { size_bytes });
        Effect::Changed
    }

    /// Returns the first guest cluster of a building operation at `at`. Positions past the end of the disk wrap around.
    pub fn position(&self, at: At) -> u64 {
        self.cluster(at).checked_rem(self.disk_clusters()).unwrap_or(0)
    }

    /// Calls `change` for each cluster of the range that lies on the disk.
    #[inline]
    pub(super) fn for_clusters(
        &mut self,
        at: At,
        clusters: Count,
        mut change: impl FnMut(&mut Self, GuestCluster) -> bool,
    ) -> Effect {
        let disk = self.builder.guest_clusters();
        if disk == 0 {
            return Effect::None;
        }
        let first = self.position(at);
        let end = (first + clusters.get().min(self.touchable)).min(disk);
        let mut changed = false;
        for cluster in first..end {
            changed |= change(self, GuestCluster::new(cluster));
        }
        self.touchable -= end - first;
        self.last = end;
        effect(changed)
    }

    /// Returns the number of clusters of the disk as it is now.
    fn disk_clusters(&self) -> u64 {
        match self.writing.size_bytes {
            None => self.builder.guest_clusters(),
            Some(size) => self.builder.plan().geometry.cluster_size.clusters_for(size),
        }
    }

    /// Returns the guest cluster at `at`; it may lie past the end of the disk.
    pub(super) fn cluster(&self, at: At) -> u64 {
        let disk = self.disk_clusters();
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

    /// Returns the offset in the file of guest data that the builder placed at `host`.
    #[inline]
    pub(super) fn file_offset(&self, host: HostOffset) -> HostOffset {
        let plan = self.builder.plan();
        plan.file.file_offset(plan.geometry.cluster_size, host)
    }

    pub(super) fn next_write(&mut self) -> WriteNumber {
        self.writes += 1;
        WriteNumber(self.writes)
    }
}

/// The operations that an image of each format has.
impl Vm {
    /// Returns the bytes around the payload of each cluster of an image that stores all of them compressed, see
    /// `ImageDrawer::payload_frame`; `None` for other images.
    pub(super) fn compressing(&self) -> Option<PayloadFrame> {
        let file = &self.builder.plan().file;
        drawer(file.format).payload_frame(file)
    }

    /// Reports whether the data of a cluster may have a look. Under extended L2, pieces of data may begin inside a
    /// cluster. Data that look like a footer must not lie where a reader would take them for the image's own.
    pub(super) fn allows_look(&self, cluster: GuestCluster, is_footer: bool) -> bool {
        let plan = self.builder.plan();
        let misleads = drawer(plan.file.format).misleads(&plan.file, cluster);
        !(plan.geometry.extended_l2 || misleads && is_footer)
    }

    /// Reports whether an operation has a meaning in an image of this format.
    pub(super) fn has_effect(&self, operation: Operation) -> bool {
        use Operation::*;
        if matches!(self.builder.plan().file.format, ImageFormat::Qcow2 | ImageFormat::Raw) {
            return true;
        }
        let compresses = self.compressing().is_some();
        match operation {
            Compress { .. } | CompressAs { .. } => compresses,
            // A compressed grain has no place before it has content.
            Preallocate { .. } | PreallocateRun { .. } => !compresses,
            Subclusters { .. }
            | Snapshot { .. }
            | SnapshotWith { .. }
            | DeleteSnapshot { .. }
            | ApplySnapshot { .. }
            | Header { .. }
            | Bitmap { .. }
            | FillBitmap { .. }
            | DeleteBitmap { .. }
            | EndFile { .. }
            | SpareBlocks { .. }
            | Beyond { kind: Hidden::Compressed, .. } => false,
            _ => true,
        }
    }
}
