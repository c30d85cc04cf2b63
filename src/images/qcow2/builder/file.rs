//! The parts of a file beyond the disk's content: its end, allocations without a write, tables that are longer than
//! necessary, clusters past the end of the disk, and strings that are made of the bytes of the program.

use std::ops::Range;

use crate::disk::clusters::GuestCluster;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::qcow2::constants::MAX_BITMAP_NAME_BYTES;
use crate::images::content::WriteNumber;
use crate::images::files::image::Image;
use crate::images::qcow2::encoding::Sizes;
use crate::images::qcow2::placement::Placement;
use crate::images::qcow2::refcounts::SpareBlocks;
use crate::images::qcow2::state::{FileEnd, FileState, GivenString};
use crate::images::qcow2::tables::{ClusterMapping, Extended};

use super::Builder;

/// The garbage at both edges of a tail. The middle is a hole.
const GARBAGE: [u8; 64] = [0x5A; 64];

impl Builder {
    /// Selects the end of the file. A tail follows the last cluster if `end` has a content for it.
    pub fn end_file(&mut self, end: FileEnd, tail_bytes: u64) {
        (self.file.end, self.file.tail_bytes) = (end, tail_bytes);
    }

    /// Makes the refcount table `table_clusters` clusters longer than necessary, and the L1 table `l1_entries` longer
    /// than now. Returns false if nothing changed.
    pub fn spare(&mut self, table_clusters: u64, l1_entries: u64) -> bool {
        let old = std::mem::replace(&mut self.plan.refcounts.spare, table_clusters);
        let entries = self.active.entries.saturating_add(l1_entries);
        let entries = entries.min(self.limits.l1_entries(&self.plan.geometry));
        let more = entries > self.active.entries && self.grow_l1(entries);
        more || old != table_clusters
    }

    /// Selects the refcount blocks that count nothing. Returns false if nothing changed.
    pub fn spare_blocks(&mut self, wanted: SpareBlocks) -> bool {
        std::mem::replace(&mut self.plan.refcounts.spare_blocks, wanted) != wanted
    }

    /// Allocates a cluster without writing to it. Skips a cluster that has a host cluster or is compressed.
    ///
    /// Returns the host offset, or `None` if nothing changed.
    pub fn preallocate(&mut self, cluster: GuestCluster) -> Option<HostOffset> {
        let (vacant, _) = self.vacant_clusters(cluster, 1);
        if vacant == 0 {
            return None;
        }
        self.preallocate_vacant(cluster, vacant).map(|(host, _)| host)
    }

    /// Allocates consecutive clusters as [`Self::preallocate`] does. A run of clusters that have no host clusters gets
    /// adjacent host clusters, so that the cost depends only on the number of table entries. Calls `allocated` with
    /// each run: its first cluster, its length and its host offset.
    pub fn preallocate_run(
        &mut self,
        clusters: Range<u64>,
        mut allocated: impl FnMut(&Self, GuestCluster, u64, HostOffset),
    ) {
        let mut at = clusters.start;
        while at < clusters.end {
            let first = GuestCluster::new(at);
            let (vacant, occupied) = self.vacant_clusters(first, clusters.end - at);
            if vacant == 0 {
                at += occupied;
                continue;
            }
            let Some((host, length)) = self.preallocate_vacant(first, vacant) else { return };
            allocated(self, first, length, host);
            at += length;
        }
    }

    /// Returns the number of consecutive clusters from `first` on that have neither a host cluster nor a payload, and
    /// the number of consecutive clusters that have one: one of the two numbers is 0. All lie in one table, and there
    /// are at most `most`, which is not 0.
    fn vacant_clusters(&mut self, first: GuestCluster, most: u64) -> (u64, u64) {
        let is_vacant = |entry| {
            let extended = matches!(entry, ClusterMapping::Extended(Extended { host: None, .. }));
            extended || matches!(entry, ClusterMapping::Unallocated | ClusterMapping::Zero(None))
        };
        let (_, index) = self.indexes(first);
        let end = index.saturating_add(most).min(self.plan.geometry.l2_entries());
        let Some((table, _)) = self.find(first) else { return (end - index, 0) };
        let first_is_vacant = is_vacant(self.tables.get(table, index));
        let differs = |at: &u64| is_vacant(self.tables.get(table, *at)) != first_is_vacant;
        let length = (index + 1..end).find(differs).unwrap_or(end) - index;
        if first_is_vacant { (length, 0) } else { (0, length) }
    }

    /// Allocates adjacent host clusters for at most `vacant` vacant clusters of one table. Returns their host offset
    /// and their number.
    fn preallocate_vacant(
        &mut self,
        first: GuestCluster,
        vacant: u64,
    ) -> Option<(HostOffset, u64)> {
        let (table, index) = self.table_for_change(first)?;
        let (host, length) = self.allocate_run(first, vacant)?;
        for nth in 0..length {
            let host = host + self.plan.geometry.cluster_size.saturating_bytes(nth);
            let entry = self.data_entry(host, WriteNumber::NONE);
            self.tables.set(table, index + nth, entry);
        }
        Some((host, length))
    }

    /// Returns adjacent host clusters: as many as wanted, or fewer if the file is nearly full.
    fn allocate_run(&mut self, first: GuestCluster, wanted: u64) -> Option<(HostOffset, u64)> {
        if wanted == 1 || self.plan.geometry.data_file {
            return self.allocate_cluster(first).map(|host| (host, wanted));
        }
        let mut length = wanted;
        while length > 0 {
            if let Some(cluster) = self.placement.allocate(length, self.placement.policy) {
                return Some((self.host_offset(cluster), length));
            }
            length /= 2;
        }
        None
    }

    /// Returns the clusters past the end of the disk that one L2 table can map: the last table that the disk needs if
    /// `table` is 0, otherwise the `table`-th one after it, modulo the tables for which the L1 table has room.
    /// Returns `None` if there is no such cluster, or if the image has a data file, which ends with the disk.
    pub fn beyond(&self, table: u64) -> Option<Range<u64>> {
        if self.plan.geometry.data_file {
            return None;
        }
        let per_table = self.plan.geometry.l2_entries();
        let disk = self.guest_clusters();
        let needed = disk.div_ceil(per_table);
        let further = self.active.entries.saturating_sub(needed);
        let in_last = disk..needed.saturating_mul(per_table);
        let folded = table.checked_sub(1).or(in_last.is_empty().then_some(0));
        match folded {
            Some(index) if further > 0 => {
                let table = needed + index % further;
                Some(table * per_table..(table + 1) * per_table)
            }
            _ => Some(in_last),
        }
        .map(|room| room.start..room.end.min(self.max_guest_clusters()))
        .filter(|room| !room.is_empty())
    }

    /// Records that clusters past the end of the disk exist. They must be discarded before the disk grows over them.
    pub fn note_beyond(&mut self) {
        self.file.beyond = true;
    }

    /// Reports whether tables may map clusters past the end of the disk.
    pub fn has_beyond(&self) -> bool {
        self.file.beyond
    }

    /// Returns the first cluster to discard when the disk gets `new_clusters`.
    ///
    /// If a disk grows, QEMU does not discard the clusters past its old end, so the guest would see them (tried with
    /// 10.0.2). A writer that has put clusters there discards them first.
    pub fn discarded_from(&self, new_clusters: u64) -> Option<u64> {
        let old_clusters = self.guest_clusters();
        let any = self.file.beyond || new_clusters < old_clusters;
        any.then(|| new_clusters.min(old_clusters))
    }

    /// Ends the writing of an image whose allocations are in `placement`.
    pub fn seal(&self, image: &mut Image, placement: &Placement) {
        let cluster_size = self.plan.geometry.cluster_size;
        let end = cluster_size.saturating_bytes(placement.clusters.end());
        let FileState { end: wanted, tail_bytes, .. } = self.file;
        let length = match wanted {
            FileEnd::Cluster => end,
            FileEnd::Zeros => end.saturating_add(tail_bytes),
            FileEnd::Garbage => {
                let length = end.saturating_add(tail_bytes);
                let edge = (GARBAGE.len() as u64).min(tail_bytes / 2);
                if edge > 0 {
                    image.write(HostOffset::new(end), &GARBAGE[..edge as usize]);
                    image.write(HostOffset::new(length - edge), &GARBAGE[..edge as usize]);
                }
                length
            }
            FileEnd::Sector | FileEnd::Content => {
                let last = self.host_offset(placement.clusters.end().saturating_sub(1)).get();
                // As long as the written bytes. At least one byte of the last cluster must be in the file.
                image.seal(last + 1);
                match wanted {
                    FileEnd::Sector => image.length_bytes().next_multiple_of(512),
                    _ => image.length_bytes(),
                }
            }
        };
        image.seal(length);
    }
}

/// The longest id and the longest name of a snapshot that are made of given bytes: `qemu-img info` prints as many. In
/// images that may be malformed, they have any length.
const MAX_SNAPSHOT_STRING_BYTES: [usize; 2] = [127, 255];

/// The strings of an image that are unique among those of their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unique {
    BitmapName,
    SnapshotId,
    SnapshotName,
}

/// Strings that are made of bytes which the program gives.
impl Builder {
    /// Makes the name of the next bitmap of given bytes. Returns `None` if no valid name can be made of them.
    pub fn bitmap_name(&mut self, bytes: &[u8]) -> Option<GivenString> {
        let most = usize::from(MAX_BITMAP_NAME_BYTES);
        self.unique_string(bytes, most, Unique::BitmapName, self.bitmaps.made + 1)
    }

    /// Makes the id of the next snapshot from `bytes`. Returns `None` if they yield no valid id.
    pub fn snapshot_id(&mut self, bytes: &[u8]) -> Option<GivenString> {
        let [most, _] = MAX_SNAPSHOT_STRING_BYTES;
        self.unique_string(bytes, most, Unique::SnapshotId, self.snapshots.taken + 1)
    }

    /// Makes the name of the next snapshot from `bytes`. Returns `None` if they yield no valid name.
    pub fn snapshot_name(&mut self, bytes: &[u8]) -> Option<GivenString> {
        let [_, most] = MAX_SNAPSHOT_STRING_BYTES;
        self.unique_string(bytes, most, Unique::SnapshotName, self.snapshots.taken + 1)
    }

    /// Sets the body of the first unknown extension of the header's style.
    pub fn set_extension_body(&mut self, bytes: &[u8]) {
        self.plan.extension_body = Some(self.given.add_string(bytes, bytes.len()));
    }

    /// Makes a valid string from `bytes`, or uses them unchanged if the image may be malformed. A valid string is UTF-8
    /// without zeros. It differs from all other strings of its kind, and from the default strings, which are made of a
    /// number. If it would not be unique, a tilde and `number` follow.
    fn unique_string(
        &mut self,
        bytes: &[u8],
        most: usize,
        kind: Unique,
        number: u32,
    ) -> Option<GivenString> {
        if self.limits.attacks > 0 {
            let most = if kind == Unique::BitmapName { most } else { bytes.len() };
            return Some(self.given.add_string(bytes, most));
        }
        let valid = String::from_utf8_lossy(bytes).replace('\0', "0");
        let suffix = format!("~{number}");
        let alone = cut(&valid, most);
        let numbered = format!("{}{suffix}", cut(&valid, most - suffix.len()));
        let unique = [alone, &numbered].into_iter().find(|string| self.is_unique(string, kind));
        unique.map(|string| self.given.add_string(string.as_bytes(), most))
    }

    /// Reports whether a string can be the next one of its kind.
    fn is_unique(&self, string: &str, kind: Unique) -> bool {
        // Names of bitmaps that are made of a number begin with letters.
        let number = match kind {
            Unique::BitmapName => string.trim_start_matches('b'),
            Unique::SnapshotId | Unique::SnapshotName => string,
        };
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let is_taken = |other: Option<GivenString>| {
            other.is_some_and(|other| self.given.string(other) == string.as_bytes())
        };
        let mut bitmaps = self.bitmaps.live().iter();
        let mut snapshots = self.snapshots.live().iter();
        !is_number
            && !match kind {
                Unique::BitmapName => bitmaps.any(|one| is_taken(one.name)),
                Unique::SnapshotId => snapshots.any(|one| is_taken(one.details.id)),
                Unique::SnapshotName => snapshots.any(|one| is_taken(one.details.name)),
            }
    }
}

/// Returns the beginning of a string, at most `most` bytes of whole characters.
fn cut(string: &str, most: usize) -> &str {
    let end = (0..=most).rev().find(|end| string.is_char_boundary(*end));
    if string.len() <= most { string } else { string.get(..end.unwrap_or(0)).unwrap_or_default() }
}
