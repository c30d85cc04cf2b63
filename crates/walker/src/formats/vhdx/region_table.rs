//! The region table: where the block allocation table and the metadata lie, and which parts of the file no block may
//! overlap.
//!
//! # Arithmetic
//! As in QEMU, the end of a region wraps around at 2^64. Such a region overlaps nothing before its start.

use std::ops::ControlFlow;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::entries::{Entries, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::vhdx::constants::{
    BAT_REGION, MAX_REGIONS, METADATA_REGION, REGION_ENTRIES_AT, REGION_ENTRY_BYTES,
    REGION_REQUIRED, REGION_TABLE_BYTES, REGION_TABLE_SIGNATURE, region, region_table,
};
use crate::formats::vhdx::header::{Checksum, not_vhdx};

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    start: u64,
    end: u64,
}

impl Region {
    /// Creates the region of `length_bytes` at `start`.
    pub fn new(start: HostOffset, length_bytes: u32) -> Self {
        Self { start: start.get(), end: start.get().wrapping_add(length_bytes.into()) }
    }

    /// Reports whether two regions overlap (QEMU `block/vhdx.c`, `vhdx_region_check`). A region without bytes overlaps
    /// one that surrounds it.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// Regions, in an order in which an overlap is quickly found.
#[derive(Clone, Debug)]
pub struct Regions {
    /// The regions in ascending order of their starts. The end of each is replaced by the largest end up to this
    /// region.
    starts: Vec<Region>,
}

impl Regions {
    /// Sorts regions.
    pub fn new(mut regions: Vec<Region>) -> Self {
        regions.sort_unstable_by_key(|region| region.start);
        let mut end = 0;
        for region in &mut regions {
            end = region.end.max(end);
            region.end = end;
        }
        Self { starts: regions }
    }

    /// Reports whether any region overlaps `part`.
    pub fn overlap(&self, part: &Region) -> bool {
        let before = self.starts.partition_point(|region| region.start < part.end);
        let last = before.checked_sub(1).and_then(|last| self.starts.get(last));
        last.is_some_and(|last| part.start < last.end)
    }
}

/// The number of bytes that are read at once.
const REGION_PIECE_BYTES: usize = 4 << 10;

/// The regions of a file.
#[derive(Clone, Debug)]
pub struct RegionTable {
    /// The host offset of the block allocation table, and the length of its region in bytes.
    pub bat: (HostOffset, u32),
    /// The host offset of the metadata.
    pub metadata_offset: HostOffset,
    /// All regions, also unknown ones, and the log.
    pub regions: Regions,
}

impl RegionTable {
    /// Reads the table at `at`, and checks it as QEMU does (`block/vhdx.c`, `vhdx_open_region_tables`).
    ///
    /// # Errors
    /// A read fails; the checksum, the signature or the number of regions is wrong; regions overlap each other or the
    /// log; a region that every file has is missing or occurs twice; or readers must know a region that is unknown.
    pub fn read<S: Storage + ?Sized>(
        file: &S,
        at: HostOffset,
        log: Region,
    ) -> Result<Self, MapError> {
        let mut head = [0; REGION_ENTRIES_AT];
        file.read_at(at, &mut head)?;
        let mut scratch = [0; REGION_PIECE_BYTES];
        let mut checksum = Checksum::of_structure(&head);
        let behind = at + head.len() as u64;
        let end = at + REGION_TABLE_BYTES as u64;
        checksum.append_stored(file, behind..end, &mut scratch)?;
        if !head.starts_with(&REGION_TABLE_SIGNATURE) || !checksum.is_in(&head) {
            return Err(not_vhdx("the region table is not valid"));
        }
        let count = region_table::ENTRY_COUNT.little_32(&head);
        if count > MAX_REGIONS {
            let field = "number of regions";
            return Err(MapError::Header { field, found: count.into(), expected: "at most 2047" });
        }
        let mut found = FoundRegions { regions: vec![log], bat: None, metadata: None };
        let _ = each_entries(file, behind, 0..count.into(), &mut scratch, |entries| -> Flow {
            match entries {
                Entries::Read(_, entries) => entries.iter().try_for_each(|it| found.add(it))?,
                Entries::Zeros(mut indices) => {
                    indices.try_for_each(|_| found.add(&[0; REGION_ENTRY_BYTES]))?
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let bat = found.bat.ok_or(not_vhdx("no region of a block allocation table"))?;
        let (metadata_offset, _) = found.metadata.ok_or(not_vhdx("no region of metadata"))?;
        Ok(Self { bat, metadata_offset, regions: Regions::new(found.regions) })
    }
}

/// The regions of the entries so far.
struct FoundRegions {
    /// All regions, and the log.
    regions: Vec<Region>,
    bat: Option<(HostOffset, u32)>,
    metadata: Option<(HostOffset, u32)>,
}

impl FoundRegions {
    fn add(&mut self, entry: &[u8; REGION_ENTRY_BYTES]) -> Result<(), MapError> {
        let offset = HostOffset::new(region::FILE_OFFSET.little(entry));
        let length_bytes = region::LENGTH.little_32(entry);
        let region = Region::new(offset, length_bytes);
        // There are at most 2047 regions.
        if self.regions.iter().any(|other| other.overlaps(&region)) {
            let expected = "an offset without another region and without the log";
            let found = offset.get();
            return Err(MapError::Header { field: "offset of a region", found, expected });
        }
        self.regions.push(region);
        let known = if entry.starts_with(&BAT_REGION) {
            &mut self.bat
        } else if entry.starts_with(&METADATA_REGION) {
            &mut self.metadata
        } else if region::REQUIRED.little_32(entry) & REGION_REQUIRED != 0 {
            return Err(MapError::Unsupported("unknown region that a reader must know"));
        } else {
            return Ok(());
        };
        match known.replace((offset, length_bytes)) {
            Some(_) => Err(not_vhdx("the region table has two regions of one kind")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, length_bytes: u32) -> Region {
        Region::new(HostOffset::new(start), length_bytes)
    }

    #[test]
    fn the_search_finds_what_each_region_says() {
        let sets: [&[(u64, u32)]; 4] = [
            &[],
            &[(4, 4), (8, 2), (20, 0), (12, 3)],
            &[(5, 0), (u64::MAX - 3, 10), (7, 1)],
            &[(0, 30), (2, 3), (9, 1)],
        ];
        for set in sets {
            let each: Vec<Region> =
                set.iter().map(|(start, length)| region(*start, *length)).collect();
            let sorted = Regions::new(each.clone());
            for start in (0..24).chain(u64::MAX - 6..=u64::MAX) {
                for length in 0..8 {
                    let part = region(start, length);
                    let expected = each.iter().any(|region| region.overlaps(&part));
                    assert_eq!(sorted.overlap(&part), expected, "{part:?} in {each:?}");
                }
            }
        }
    }
}
