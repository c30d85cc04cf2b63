//! The entries of L1 and L2 tables, each by itself, as `qemu-img check` checks them: reserved bits, alignment, and
//! flags that contradict each other. Also counts the allocated clusters of the disk. Does not check refcounts:
//! `recount` does. The command uses this module for files; in the loop, the model checks the images.

use std::ops::ControlFlow;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::{PIECE_BYTES, Storage};
use crate::formats::error::{Flow, MapError};
use crate::formats::qcow2::constants::SNAPSHOT_V3_EXTRA_BYTES as V3_EXTRA_BYTES;
use crate::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry, SubclusterBitmap};
use crate::formats::qcow2::geometry::{Geometry, Version};
use crate::formats::qcow2::header::{Header, PARSED_BYTES};
use crate::formats::qcow2::snapshot::SnapshotEntry;
use crate::formats::qcow2::table::{HostTable, TableEntry};
use crate::formats::qcow2::{refcount, snapshot_table};

/// Bits 0–8 and 56–62 of an L1 entry.
const L1_RESERVED: u64 = 0x7F00_0000_0000_01FF;
/// Bits 1–8 and 56–61 of an L2 entry that is not compressed.
const L2_RESERVED: u64 = 0x3F00_0000_0000_01FE;

/// Bits 0–8 of a refcount table entry.
const REFCOUNT_TABLE_RESERVED: u64 = 0x1FF;

/// A fault in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryReport {
    /// The kind of table.
    pub table: &'static str,
    /// The host offset of the entry.
    pub at: HostOffset,
    /// The entry as stored.
    pub entry: u64,
    /// The fault.
    pub what: &'static str,
}

/// The number of clusters that the active tables map, including clusters past the end of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestClusters {
    /// Clusters with an allocation in the file, for data or for zeros.
    pub allocated: u64,
    /// Compressed clusters.
    pub compressed: u64,
    /// Compressed clusters, and clusters that do not directly follow the allocation before them in their table.
    pub fragmented: u64,
}

/// Checks every entry of the image in `storage`, and calls `report` with each fault until it breaks.
///
/// # Errors
/// The header, the snapshot table or a refcount table entry is malformed, or a read failed.
pub fn scan<S: Storage + ?Sized>(
    storage: &S,
    report: &mut impl FnMut(EntryReport) -> ControlFlow<()>,
) -> Result<GuestClusters, MapError> {
    let mut first_bytes = [0; PARSED_BYTES];
    storage.read_at(HostOffset::ZERO, &mut first_bytes)?;
    let header = Header::parse(&first_bytes)?;
    let geometry = header.geometry;
    let counts = GuestClusters::default();
    let mut scan = Scan { storage, geometry, report, counts, next: None, active: true };
    if scan.refcount_table(&header)?.is_break()
        || scan.l1(HostTable::active_l1(&header))?.is_break()
    {
        return Ok(scan.counts);
    }
    scan.active = false;
    let mut ended = false;
    snapshot_table::each_entry(storage, &header, |_, at, entry| {
        if !ended {
            ended = scan.snapshot(at, entry)?.is_break();
        }
        Ok(())
    })?;
    Ok(scan.counts)
}

struct Scan<'s, S: Storage + ?Sized, R> {
    storage: &'s S,
    geometry: Geometry,
    report: &'s mut R,
    counts: GuestClusters,
    /// The host offset at which the next cluster of this table would be contiguous.
    next: Option<HostOffset>,
    /// The tables belong to the active disk.
    active: bool,
}

impl<S: Storage + ?Sized, R: FnMut(EntryReport) -> ControlFlow<()>> Scan<'_, S, R> {
    fn refcount_table(&mut self, header: &Header) -> Flow {
        let (storage, cluster_size) = (self.storage, self.geometry.cluster_size);
        let table = HostTable::refcounts(header);
        table.each_entry(
            storage,
            &mut vec![0; PIECE_BYTES],
            |TableEntry { at, index, word, .. }| {
                let Some(block) = refcount::block_offset(word) else {
                    return Ok(ControlFlow::Continue(()));
                };
                let impossible = if block.get() & cluster_size.mask() != 0 {
                    Some("is not on a cluster boundary")
                } else {
                    (i64::try_from(block.get()).is_err()).then_some("lies past 2^63")
                };
                if let Some(what) = impossible {
                    return Err(MapError::RefcountBlock { index, host: block, what });
                }
                if word & REFCOUNT_TABLE_RESERVED == 0 {
                    return Ok(ControlFlow::Continue(()));
                }
                let what = "reserved bits are set";
                Ok((self.report)(EntryReport { table: "refcount table", at, entry: word, what }))
            },
        )
    }

    fn snapshot(&mut self, at: HostOffset, entry: &SnapshotEntry) -> Flow {
        let short = self.geometry.version == Version::V3 && entry.extra_bytes < V3_EXTRA_BYTES;
        if short {
            let (word, what) = (u64::from(entry.extra_bytes), "less than 16 bytes of extra data");
            let report = EntryReport { table: "snapshot", at, entry: word, what };
            if (self.report)(report).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if let Some(what) = entry.l1_fault(self.geometry.cluster_size) {
            let word = entry.l1_offset.get();
            return Ok((self.report)(EntryReport { table: "snapshot", at, entry: word, what }));
        }
        self.l1(HostTable::snapshot_l1(entry))
    }

    fn l1(&mut self, table: HostTable) -> Flow {
        let mut l2_piece = vec![0; PIECE_BYTES];
        table.each_entry(self.storage, &mut vec![0; PIECE_BYTES], |entry| {
            self.l1_entry(entry.at, entry.word, &mut l2_piece)
        })
    }

    fn l1_entry(&mut self, at: HostOffset, word: u64, piece: &mut [u8]) -> Flow {
        let Some(l2) = L1Entry(word).table() else { return Ok(ControlFlow::Continue(())) };
        let cluster_size = self.geometry.cluster_size;
        let reserved = (word & L1_RESERVED != 0).then_some("reserved bits are set");
        let unaligned = (l2.get() & cluster_size.mask() != 0)
            .then_some("the L2 table is not on a cluster boundary");
        for what in reserved.into_iter().chain(unaligned) {
            if (self.report)(EntryReport { table: "L1", at, entry: word, what }).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.next = None;
        let table = HostTable::l2(&self.geometry, l2);
        table.each_entry(self.storage, piece, |TableEntry { at, word, second, .. }| {
            // Standard entries have no bitmap.
            Ok(self.l2_entry(at, word, SubclusterBitmap(second.unwrap_or(0))))
        })
    }

    fn l2_entry(&mut self, at: HostOffset, word: u64, bitmap: SubclusterBitmap) -> ControlFlow<()> {
        let entry = L2Entry(word);
        let mut report = |what| (self.report)(EntryReport { table: "L2", at, entry: word, what });
        let host = match entry.kind(&self.geometry) {
            Err(what) => return report(what),
            Ok(ClusterKind::Compressed(_)) if self.geometry.data_file => {
                return report("a compressed cluster in an image with a data file");
            }
            Ok(ClusterKind::Compressed(_)) => {
                self.counts.allocated += u64::from(self.active);
                self.counts.compressed += u64::from(self.active);
                self.counts.fragmented += u64::from(self.active);
                if entry.copied() {
                    return report("a compressed cluster is flagged as copied");
                }
                return ControlFlow::Continue(());
            }
            Ok(
                ClusterKind::Normal(host)
                | ClusterKind::ZeroAllocated(host)
                | ClusterKind::Subclusters(host),
            ) => Some(host),
            Ok(_) => None,
        };
        if word & L2_RESERVED != 0 {
            report("reserved bits are set")?;
        }
        if self.geometry.extended_l2
            && let Some(what) = bitmap.contradiction(host.is_some())
        {
            report(what)?;
        }
        let Some(host) = host else { return ControlFlow::Continue(()) };
        if host.get() & self.geometry.cluster_size.mask() != 0 {
            report("the cluster is not on a cluster boundary")?;
        }
        if self.active {
            self.counts.allocated += 1;
            self.counts.fragmented += u64::from(self.next.is_some_and(|next| next != host));
            self.next = host.checked_add(self.geometry.cluster_size.bytes());
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, Walker};
    use crate::images::image::Image;
    use crate::programs::generate::generate_any;

    /// Returns the bytes of a small image with data, and its header.
    fn small() -> (Vec<u8>, Header) {
        let mut harness = Harness::new(Walker::default());
        for rng_seed in 0.. {
            let program = generate_any(rng_seed, 24);
            let image: &Image = harness.build(&program.encode());
            let length = image.length_bytes() as usize;
            if length > 1 << 22 {
                continue;
            }
            let mut bytes = vec![0; length];
            image.read_at(HostOffset::ZERO, &mut bytes).unwrap();
            let header = Header::parse(bytes.first_chunk().unwrap()).unwrap();
            let plain = header.geometry.version == Version::V3 && !header.geometry.extended_l2;
            if plain && scanned(&bytes).0.allocated > 4 {
                return (bytes, header);
            }
        }
        unreachable!("no seed has a small image");
    }

    /// Returns the big-endian word at `at`.
    fn word_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_be_bytes(*bytes[at..].first_chunk().unwrap())
    }

    fn scanned(bytes: &[u8]) -> (GuestClusters, Vec<&'static str>) {
        let mut found = Vec::new();
        let counts = scan(bytes, &mut |report| {
            found.push(report.what);
            ControlFlow::Continue(())
        });
        (counts.unwrap(), found)
    }

    /// Returns the index of the first entry from `at` on that is not zero, and the entry.
    fn first_entry(bytes: &[u8], at: HostOffset) -> (usize, u64) {
        let mut at = at.get() as usize;
        while word_at(bytes, at) == 0 {
            at += 8;
        }
        (at, word_at(bytes, at))
    }

    #[test]
    fn each_planted_fault_is_found_and_sound_images_have_none() {
        let (bytes, header) = small();
        assert_eq!(scanned(&bytes).1, [""; 0]);
        let (l1_at, l1) = first_entry(&bytes, header.l1_offset);
        let (l2_at, _) = first_entry(&bytes, L1Entry(l1).table().unwrap());
        let (block_at, block) = first_entry(&bytes, header.refcount_table_offset);
        let reserved = "reserved bits are set";
        let cases = [
            (l1_at, l1 | 1 << 56, reserved),
            (l1_at, l1 | 1, reserved),
            (l2_at, 1 << 16 | 1 << 61, reserved),
            (l2_at, 1 << 16 | 1 << 8, reserved),
            (l2_at, 3 << 62 | 1 << 16, "a compressed cluster is flagged as copied"),
            (block_at, block | 1, reserved),
        ];
        for (at, word, what) in cases {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&word.to_be_bytes());
            // Entries of a table that two L1 entries share are checked twice.
            let found = scanned(&bytes).1;
            assert!(!found.is_empty() && found.iter().all(|found| *found == what), "{found:?}");
        }
        let mut bytes = bytes.clone();
        bytes[block_at..block_at + 8].copy_from_slice(&(1u64 << 63).to_be_bytes());
        let unreadable = scan(bytes.as_slice(), &mut |_| ControlFlow::Continue(()));
        assert!(matches!(unreadable, Err(MapError::RefcountBlock { index: 0, .. })));
    }
}
