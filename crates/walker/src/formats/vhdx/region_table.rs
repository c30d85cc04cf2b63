//! The region table: where the block allocation table and the metadata lie.

use std::ops::ControlFlow;

use bytes::Buf;

use super::checksum::Checksum;
use super::constants::{
    BAT_REGION, Guid, MAX_REGIONS, METADATA_REGION, REGION_ENTRIES_AT, REGION_ENTRY_BYTES,
    REGION_REQUIRED, REGION_TABLE_BYTES, REGION_TABLE_SIGNATURE,
};
use super::header::not_vhdx;
use super::regions::{Region, Regions};
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::entries::{Entries, each_entries};
use crate::formats::error::{Flow, MapError};

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
        let count = head.get(8..).map_or(0, |mut rest| rest.get_u32_le());
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
        let Entry { guid, offset, length_bytes, flags } = Entry::parse(entry);
        let region = Region::new(offset, length_bytes);
        // There are at most 2047 regions.
        if self.regions.iter().any(|other| other.overlaps(&region)) {
            let expected = "an offset without another region and without the log";
            let found = offset.get();
            return Err(MapError::Header { field: "offset of a region", found, expected });
        }
        self.regions.push(region);
        let known = match guid {
            BAT_REGION => &mut self.bat,
            METADATA_REGION => &mut self.metadata,
            _ if flags & REGION_REQUIRED != 0 => {
                return Err(MapError::Unsupported("unknown region that a reader must know"));
            }
            _ => return Ok(()),
        };
        match known.replace((offset, length_bytes)) {
            Some(_) => Err(not_vhdx("the region table has two regions of one kind")),
            None => Ok(()),
        }
    }
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
