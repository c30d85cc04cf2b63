//! The region table: where the block allocation table and the metadata lie.

use bytes::Buf;

use super::checksum::Checksum;
use super::constants::{
    BAT_REGION, Guid, MAX_REGIONS, METADATA_REGION, REGION_ENTRIES_AT, REGION_ENTRY_BYTES,
    REGION_REQUIRED, REGION_TABLE_BYTES, REGION_TABLE_SIGNATURE,
};
use super::regions::{Region, Regions};
use crate::disk::offsets::HostOffset;
use crate::formats::error::MapError;

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
    /// Parses the table, and checks it as QEMU does (`block/vhdx.c`, `vhdx_open_region_tables`).
    ///
    /// # Errors
    /// The checksum, the signature or the number of regions is wrong; regions overlap each other or the log; a region
    /// that every file has is missing or occurs twice; or readers must know a region that is unknown.
    pub fn parse(bytes: &[u8; REGION_TABLE_BYTES], log: Region) -> Result<Self, MapError> {
        let not_vhdx = |what| MapError::NotImage { format: "vhdx", what };
        if !bytes.starts_with(&REGION_TABLE_SIGNATURE) || !Checksum::is_valid(bytes) {
            return Err(not_vhdx("the region table is not valid"));
        }
        let (head, entries) = bytes.split_at(REGION_ENTRIES_AT);
        let count = head.get(8..).map_or(0, |mut rest| rest.get_u32_le());
        let Some(entries) = first_entries(entries, count) else {
            let field = "number of regions";
            return Err(MapError::Header { field, found: count.into(), expected: "at most 2047" });
        };
        let mut regions = Vec::new();
        regions.push(log);
        let (mut bat, mut metadata) = (None, None);
        for entry in entries {
            let Entry { guid, offset, length_bytes, flags } = Entry::parse(entry);
            let region = Region::new(offset, length_bytes);
            // There are at most 2047 regions.
            if regions.iter().any(|other| other.overlaps(&region)) {
                let expected = "an offset without another region and without the log";
                let found = offset.get();
                return Err(MapError::Header { field: "offset of a region", found, expected });
            }
            regions.push(region);
            let known = match guid {
                BAT_REGION => &mut bat,
                METADATA_REGION => &mut metadata,
                _ if flags & REGION_REQUIRED != 0 => {
                    return Err(MapError::Unsupported("unknown region that a reader must know"));
                }
                _ => continue,
            };
            if known.replace((offset, length_bytes)).is_some() {
                return Err(not_vhdx("the region table has two regions of one kind"));
            }
        }
        let bat = bat.ok_or(not_vhdx("no region of a block allocation table"))?;
        let (metadata_offset, _) = metadata.ok_or(not_vhdx("no region of metadata"))?;
        Ok(Self { bat, metadata_offset, regions: Regions::new(regions) })
    }
}

/// Returns the first `count` entries, or `None` if there are too many.
fn first_entries(entries: &[u8], count: u32) -> Option<&[[u8; REGION_ENTRY_BYTES]]> {
    let count = usize::try_from(count).ok().filter(|_| count <= MAX_REGIONS)?;
    entries.as_chunks().0.get(..count)
}

struct Entry {
    guid: Guid,
    offset: HostOffset,
    length_bytes: u32,
    flags: u32,
}

impl Entry {
    fn parse(bytes: &[u8; REGION_ENTRY_BYTES]) -> Self {
        let mut rest = bytes.as_slice();
        let mut guid = [0; 16];
        rest.copy_to_slice(&mut guid);
        let offset = HostOffset::new(rest.get_u64_le());
        Self { guid, offset, length_bytes: rest.get_u32_le(), flags: rest.get_u32_le() }
    }
}
