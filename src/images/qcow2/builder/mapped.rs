//! The decisions of the builder about data, as raw files, later writes and the writers of other formats need them. Also
//! the structures that several of these formats share: tables with an entry of 32 bits for each block.

use crate::disk::clusters::{GuestCluster, SUBCLUSTERS};
use crate::disk::image_format::ImageFormat;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::images::content::unstamped::UnstampedData;
use crate::images::content::{WriteContent, WriteNumber, stamp};
use crate::images::files::LayerFiles;
use crate::images::files::image::Image;
use crate::images::qcow2::encoding::Sizes;
use crate::images::qcow2::serialise::DataCluster;
use crate::images::qcow2::tables::{ClusterMapping, Compressed, Extended};

use super::Builder;

/// A guest cluster that is not unallocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedCluster {
    /// The guest cluster, which may lie past the end of the disk.
    pub cluster: GuestCluster,
    /// Its mapping. A writer of another format has a place of its own for the host offset.
    pub mapping: ClusterMapping,
}

impl MappedCluster {
    /// Returns the host offset and the write of a cluster of data.
    pub fn data(&self) -> Option<(HostOffset, WriteNumber)> {
        match self.mapping {
            ClusterMapping::Normal(host, write) => Some((host, write)),
            _ => None,
        }
    }
}

impl Builder {
    /// Fills `into` with the clusters that are not unallocated, in the order of the disk.
    pub fn mapped_clusters(&self, into: &mut Vec<MappedCluster>) {
        into.clear();
        let entries = self.plan.geometry.l2_entries();
        for (l1_index, table) in self.active.tables() {
            for (first, page) in self.tables.pages(*table) {
                for (index, entry) in (first..).zip(page) {
                    if *entry != ClusterMapping::Unallocated {
                        let cluster = GuestCluster::new(l1_index * entries + index);
                        into.push(MappedCluster { cluster, mapping: *entry });
                    }
                }
            }
        }
        into.sort_unstable_by_key(|mapped| mapped.cluster);
    }

    /// Writes the data of a whole cluster to `at`.
    pub fn write_cluster(
        &self,
        image: &mut Image,
        cluster: GuestCluster,
        at: HostOffset,
        write: WriteNumber,
    ) {
        // An allocated cluster without a write reads as zeros.
        if write != WriteNumber::NONE {
            let cluster_size = self.plan.geometry.cluster_size;
            let guest = cluster_size.guest_offset(cluster);
            self.write_whole(image, (guest, at), write);
        }
    }

    /// Returns the number of clusters that a table must cover: those of the disk, and those of `mapped` past its end.
    /// `mapped` has the order of the disk.
    pub fn covered_clusters(&self, mapped: &[MappedCluster]) -> u64 {
        let stored = mapped.last().map_or(0, |last| last.cluster.get() + 1);
        self.guest_clusters().max(stored)
    }

    /// Returns the number of clusters of the file, whose last ones may be free.
    pub fn file_clusters(&self) -> u64 {
        self.placement.append_at()
    }

    /// Returns the number of L1 entries that the disk does not need.
    pub fn spare_l1_entries(&self) -> u64 {
        let needed = self.plan.geometry.l1_entries_for(self.plan.size_bytes);
        self.active.entries.saturating_sub(needed)
    }
}

impl Builder {
    /// Writes the bytes that a guest reads. The file is exactly as long as the disk. If it `has_holes`, it stores only
    /// the clusters and subclusters that hold data.
    pub fn build_raw(&self, has_holes: bool, files: &mut LayerFiles) {
        files.begin(ImageFormat::Raw);
        if has_holes {
            files.image.stored.begin();
        }
        self.write_flat(&mut files.image, HostOffset::ZERO);
        files.image.truncate(self.plan.size_bytes);
        files.image.seal(self.plan.size_bytes);
    }

    /// Writes the bytes that a guest reads from `start` on, in the order of the disk. The last cluster may reach past
    /// the disk.
    pub fn write_flat(&self, image: &mut Image, start: HostOffset) {
        let geometry = &self.plan.geometry;
        for (l1_index, table) in self.active.tables() {
            let first_guest = l1_index * geometry.l2_span_bytes();
            for (first, page) in self.tables.pages(*table) {
                for (index, entry) in (first..).zip(page) {
                    let guest = first_guest + index * geometry.cluster_size.bytes();
                    self.store(image, start + guest, *entry);
                    self.write_read(image, (GuestOffset::new(guest), start + guest), *entry);
                }
            }
        }
    }

    /// Stores the data of one cluster at `at`, if the file has holes. Data may be zeros.
    fn store(&self, image: &mut Image, at: HostOffset, entry: ClusterMapping) {
        let geometry = &self.plan.geometry;
        match entry {
            ClusterMapping::Normal(..) | ClusterMapping::Compressed(_) => {
                image.stored.add(at, geometry.cluster_size.bytes());
            }
            ClusterMapping::Extended(Extended { host: Some(_), bitmap, .. }) => {
                let cell = geometry.cell_bytes();
                for subcluster in (0..SUBCLUSTERS).filter(|it| bitmap.allocated & 1 << it != 0) {
                    image.stored.add(at + u64::from(subcluster) * cell, cell);
                }
            }
            ClusterMapping::Unallocated | ClusterMapping::Zero(_) | ClusterMapping::Extended(_) => {
            }
        }
    }

    /// Writes the bytes that a guest reads of one cluster to `at`, unless they are zeros.
    fn write_read(
        &self,
        image: &mut Image,
        (guest, at): (GuestOffset, HostOffset),
        entry: ClusterMapping,
    ) {
        let geometry = &self.plan.geometry;
        match entry {
            ClusterMapping::Normal(_, WriteNumber::NONE) => {}
            ClusterMapping::Normal(_, write) => {
                self.write_whole(image, (guest, at), write);
            }
            ClusterMapping::Compressed(Compressed { write, given: Some(given), .. }) => {
                image.write_parts(at, &[&stamp(guest, write), self.given.content(given)], &[]);
            }
            ClusterMapping::Compressed(Compressed { write, kind, .. }) => {
                let filling = kind.shape.behind_stamp(geometry.cluster_size);
                image.write_parts(at, &[&stamp(guest, write)], filling);
            }
            ClusterMapping::Extended(Extended { host: Some(_), bitmap, writes }) => {
                let writes = self.tables.writes(writes);
                // Only the active disk is written.
                let cluster = DataCluster { guest, host: at, is_shared: false };
                self.write_subclusters(image, cluster, bitmap, writes, bitmap.allocated);
            }
            ClusterMapping::Unallocated | ClusterMapping::Zero(_) | ClusterMapping::Extended(_) => {
            }
        }
    }
}

/// The data of a whole cluster of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredData {
    /// No data: the layer below decides.
    Nothing,
    /// Zeros.
    Zeros,
    /// The data of a write.
    Write(WriteNumber),
    /// The data of a write without stamps.
    Unstamped(UnstampedData),
    /// Data that no single uncompressed write makes: compressed ones, or those of subclusters.
    Other,
}

impl Builder {
    /// Adds data without stamps. Returns the number of the write that has them.
    pub fn add_unstamped(&mut self, data: UnstampedData) -> WriteNumber {
        // A program adds them at most once for each cluster that it touches (`limits`).
        let index = self.unstamped.len() as u32;
        self.unstamped.push(data);
        WriteNumber::of_unstamped(index)
    }

    /// Returns the data that the image stores for a cluster.
    pub fn stored_data(&self, cluster: GuestCluster) -> StoredData {
        let Some((table, index)) = self.find(cluster) else { return StoredData::Nothing };
        let mut pages = self.tables.pages(table);
        let entry = pages.find_map(|(first, page)| {
            let inside = usize::try_from(index.checked_sub(first)?).ok()?;
            page.get(inside).copied()
        });
        match entry.unwrap_or_default() {
            ClusterMapping::Unallocated => StoredData::Nothing,
            ClusterMapping::Zero(_) | ClusterMapping::Normal(_, WriteNumber::NONE) => {
                StoredData::Zeros
            }
            ClusterMapping::Normal(_, write) => match write.content() {
                WriteContent::Unstamped(index) => {
                    let data = self.unstamped.get(index as usize).copied();
                    data.map_or(StoredData::Other, StoredData::Unstamped)
                }
                WriteContent::Stamped | WriteContent::Look(_) | WriteContent::Deep => {
                    StoredData::Write(write)
                }
            },
            ClusterMapping::Compressed(_) | ClusterMapping::Extended(_) => StoredData::Other,
        }
    }
}

/// Bytes in which all bits are set.
pub static ONES: [u8; 64 << 10] = [0xff; 64 << 10];

/// The length of an entry in bytes.
pub const BLOCK_ENTRY_BYTES: u64 = 4;
/// The unit to which a table is padded, in bytes.
const SECTOR_BYTES: u64 = 512;
/// The number of entries between two blocks up to which one write covers both.
const NEAR_ENTRIES: u64 = 32;

/// Writes a table with the blocks of `mapped`, sorted by their index, whose entries `entry_of` returns. Returns the
/// byte behind the table, which is padded to a whole sector.
pub fn write_table(
    image: &mut Image,
    table: u64,
    entries: u32,
    mapped: &[MappedCluster],
    entry_of: impl Fn(&MappedCluster) -> Option<[u8; 4]>,
) -> u64 {
    let at = |index: u64| HostOffset::new(table.saturating_add(index * BLOCK_ENTRY_BYTES));
    let padded = u64::from(entries).next_multiple_of(SECTOR_BYTES / BLOCK_ENTRY_BYTES);
    let length = |from: u64, until: u64| until.saturating_sub(from) * BLOCK_ENTRY_BYTES;
    let mut next = 0;
    let index_of = |mapped: &MappedCluster| mapped.cluster.get();
    for near in mapped.chunk_by(|here, then| index_of(then) - index_of(here) <= NEAR_ENTRIES) {
        let (first, end) = (index_of(&near[0]), index_of(&near[near.len() - 1]) + 1);
        write_ones(image, at(next), length(next, first));
        let out = image.place(at(first), length(first, end) as usize);
        out.fill(0xff);
        for block in near {
            let Some(entry) = entry_of(block) else { continue };
            let inside = length(first, index_of(block)) as usize;
            out[inside..][..entry.len()].copy_from_slice(&entry);
        }
        next = end;
    }
    write_ones(image, at(next), length(next, padded));
    at(padded).get()
}

/// Writes bytes in which all bits are set. The image refers to static bytes, so the empty parts of a table are not
/// copied.
fn write_ones(image: &mut Image, mut at: HostOffset, mut length_bytes: u64) {
    while length_bytes > 0 {
        let piece = length_bytes.min(ONES.len() as u64);
        image.write_parts(at, &[], &ONES[..piece as usize]);
        at += piece;
        length_bytes -= piece;
    }
}

/// Reports structures in the order of the file. A structure without a host offset is not in the image.
pub fn report_structures<const N: usize>(
    mut structures: [(Option<u64>, Event); N],
    observer: &dyn Observer,
) {
    observer.begin(State::Serialise);
    structures.sort_by_key(|(offset, _)| *offset);
    for (_, event) in structures.iter().filter(|(offset, _)| offset.is_some()) {
        observer.event(State::Serialise, *event);
    }
}
