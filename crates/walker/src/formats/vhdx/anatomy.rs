//! The anatomy of a VHDX image: the file identifier, both headers, the log's first entry, both region tables, the
//! metadata, and the entries of the block allocation table; and fields and entries in words.

use std::ops::{ControlFlow, Range};

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Storage, read_array};
use crate::formats::anatomy::{
    Anatomy, ByteOrder, Element, FieldGroup, NOTHING, OffsetUnit, Part, Seal, SealKind,
    StructureField, feature_names, field_in_words, with_reserved,
};
use crate::formats::entries::{Entries, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::vhdx::block_table::{BlockState, BlockTable};
use crate::formats::vhdx::constants::{
    BAT_ENTRY_BYTES, BAT_REGION, CHECKSUM_AT, FILE_PARAMETERS, Guid, LOG_ENTRY_SIGNATURE,
    LOG_HEADER_BYTES, LOGICAL_SECTOR_SIZE, MAX_METADATA_ENTRIES, MAX_REGIONS, METADATA_ENTRIES_AT,
    METADATA_ENTRY_BYTES, METADATA_REGION, METADATA_TABLE_BYTES, OFFSET_UNIT_BYTES, PAGE_83,
    PHYSICAL_SECTOR_SIZE, REGION_ENTRIES_AT, REGION_ENTRY_BYTES, REGION_TABLE_BYTES,
    REGION_TABLE_OFFSET, REGION_TABLE_OFFSETS, VHDX_HEADER_BYTES, VHDX_HEADER_OFFSETS,
    VIRTUAL_DISK_SIZE, content, file_identifier, header, log_entry, metadata_item, metadata_table,
    region, region_table,
};
use crate::formats::vhdx::header::VhdxHeader;
use crate::formats::vhdx::metadata::{Metadata, MetadataTable};
use crate::formats::vhdx::region_table::{Region, RegionTable};

/// The number of bytes of the file identifier: the signature, and the name of the creator.
const IDENTIFIER_BYTES: u64 = 8 + 512;
/// The contents of the items that all readers know.
const ITEM_CONTENTS: &[(Guid, &[StructureField])] = &[
    (FILE_PARAMETERS, &[content::BLOCK_SIZE, content::FILE_PARAMETERS]),
    (VIRTUAL_DISK_SIZE, &[content::VIRTUAL_DISK_SIZE]),
    (PAGE_83, &[content::PAGE_83_DATA, content::PAGE_83_DATA_END]),
    (LOGICAL_SECTOR_SIZE, &[content::LOGICAL_SECTOR_SIZE]),
    (PHYSICAL_SECTOR_SIZE, &[content::PHYSICAL_SECTOR_SIZE]),
];

/// The number of bytes of the block allocation table that are read at a time.
const BAT_SCRATCH_BYTES: usize = 128 * BAT_ENTRY_BYTES;

impl Anatomy {
    /// Takes a VHDX image apart.
    pub(in crate::formats) fn read_vhdx<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
    ) -> Result<(), MapError> {
        self.add_structure(Part::Header, HostOffset::ZERO, IDENTIFIER_BYTES);
        self.add_fields(group(Part::Header, HostOffset::ZERO), file_identifier::FIELDS);
        for at in VHDX_HEADER_OFFSETS.map(HostOffset::new) {
            self.add_sealed(Part::Header, at, VHDX_HEADER_BYTES, header::FIELDS);
        }
        let header = VhdxHeader::read(storage)?;
        self.log(storage, &header)?;
        let log = Region::new(header.log_offset, header.log_length_bytes);
        let table = self.region_tables(storage, log)?;
        let metadata = self.metadata(storage, table.metadata_offset)?;
        let (offset, length_bytes) = table.bat;
        let table = BlockTable::new(offset, length_bytes, &metadata)?;
        self.cluster_size = ClusterSize::from_bits(table.block_bytes.ilog2());
        let entries_bytes = u64::from(table.checked_entries) * BAT_ENTRY_BYTES as u64;
        self.add_table(Part::Table, offset, entries_bytes);
        let left = u64::from(length_bytes).saturating_sub(entries_bytes);
        self.add_structure(Part::Table, offset + entries_bytes, left);
        self.blocks(storage, &table)
    }

    /// Adds a structure with a checksum, and its fields.
    fn add_sealed(
        &mut self,
        part: Part,
        start: HostOffset,
        length_bytes: usize,
        fields: &'static [StructureField],
    ) {
        self.add_structure(part, start, length_bytes as u64);
        let seal = Some(seal(start, length_bytes));
        self.add_fields(FieldGroup { seal, ..group(part, start) }, fields);
    }

    /// Adds the log, and the header of its first entry, even if that is left over from earlier times.
    fn log<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &VhdxHeader,
    ) -> Result<(), MapError> {
        let start = header.log_offset;
        self.add_structure(Part::Header, start, header.log_length_bytes.into());
        let bytes: [u8; LOG_HEADER_BYTES] = read_array(storage, start)?;
        if bytes.starts_with(&LOG_ENTRY_SIGNATURE) {
            let length = usize::try_from(log_entry::ENTRY_LENGTH.little(&bytes)).ok();
            // The checksum of a longer entry is not kept right.
            let lengths = LOG_HEADER_BYTES..=OFFSET_UNIT_BYTES as usize;
            let seal = length.filter(|it| lengths.contains(it)).map(|it| seal(start, it));
            self.add_fields(FieldGroup { seal, ..group(Part::Header, start) }, log_entry::FIELDS);
        }
        Ok(())
    }

    /// Adds both region tables. Returns the first one.
    fn region_tables<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        log: Region,
    ) -> Result<RegionTable, MapError> {
        for start in REGION_TABLE_OFFSETS {
            let at = HostOffset::new(start);
            self.add_sealed(Part::Directory, at, REGION_TABLE_BYTES, region_table::FIELDS);
            let seal = Some(seal(at, REGION_TABLE_BYTES));
            let head: [u8; REGION_ENTRIES_AT] = read_array(storage, at)?;
            let count = region_table::ENTRY_COUNT.little_32(&head);
            for index in 0..u64::from(count.min(MAX_REGIONS)) {
                let inside = REGION_ENTRIES_AT as u64 + index * REGION_ENTRY_BYTES as u64;
                let entry = at + inside;
                // QEMU does not read the second table.
                let is_read = start == REGION_TABLE_OFFSET;
                if is_read {
                    self.other_region(&read_array(storage, entry)?);
                }
                let group = group(Part::Directory, entry);
                for field in (FieldGroup { seal, ..group }).elements(region::FIELDS) {
                    let guest = if is_read { field.guest } else { NOTHING };
                    self.push(Element { guest, ..field });
                }
            }
        }
        RegionTable::read(storage, HostOffset::new(REGION_TABLE_OFFSET), log)
    }

    /// Adds the region of an entry, unless it has structures of its own.
    fn other_region(&mut self, entry: &[u8; REGION_ENTRY_BYTES]) {
        if ![BAT_REGION, METADATA_REGION].iter().any(|known| entry.starts_with(known)) {
            let start = HostOffset::new(region::FILE_OFFSET.little(entry));
            self.add_structure(Part::Payload, start, region::LENGTH.little(entry));
        }
    }

    /// Adds the metadata table and the items of the region at `region`. Returns their values.
    fn metadata<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        region: HostOffset,
    ) -> Result<Metadata, MapError> {
        self.add_structure(Part::Metadata, region, METADATA_TABLE_BYTES as u64);
        self.add_fields(group(Part::Metadata, region), metadata_table::FIELDS);
        let head: [u8; METADATA_ENTRIES_AT] = read_array(storage, region)?;
        let count = metadata_table::ENTRY_COUNT.little(&head).min(MAX_METADATA_ENTRIES.into());
        for index in 0..count {
            let inside = METADATA_ENTRIES_AT as u64 + index * METADATA_ENTRY_BYTES as u64;
            let at = region + inside;
            self.add_fields(group(Part::Metadata, at), metadata_item::FIELDS);
            let entry: [u8; METADATA_ENTRY_BYTES] = read_array(storage, at)?;
            let at = region + metadata_item::OFFSET.little(&entry);
            let length = metadata_item::LENGTH.little(&entry);
            if length > 0 {
                self.add_structure(Part::Metadata, at, length);
            }
            if let Some((_, fields)) =
                ITEM_CONTENTS.iter().find(|(known, _)| entry.starts_with(known))
            {
                self.add_fields(group(Part::Metadata, at), fields);
            }
        }
        MetadataTable::read(storage, region)?.values(storage, region)
    }

    /// Adds the entries of the table: those that are not zero, and in the parts of the table that the file stores also
    /// those of all sector bitmaps. Adds the blocks that have a place.
    fn blocks<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        table: &BlockTable,
    ) -> Result<(), MapError> {
        let mut scratch = [0; BAT_SCRATCH_BYTES];
        let indices = 0..table.room_entries;
        let _ = each_entries(storage, table.offset, indices, &mut scratch, |piece| -> Flow {
            let Entries::Read(first, entries) = piece else { return Ok(ControlFlow::Continue(())) };
            for (index, entry) in (first..).zip(entries) {
                let is_needed = index < table.checked_entries.into();
                if *entry != [0; BAT_ENTRY_BYTES] || is_needed && table.is_bitmap(index) {
                    self.push(block(table, index));
                    let place = u64::from_le_bytes(*entry) / OFFSET_UNIT_BYTES * OFFSET_UNIT_BYTES;
                    if place > 0 {
                        let place = HostOffset::new(place);
                        self.add_structure(Part::Payload, place, table.block_bytes.into());
                    }
                }
            }
            Ok(self.room())
        })?;
        Ok(())
    }
}

/// Returns the entry of a table at `index`.
fn block(table: &BlockTable, index: u64) -> Element {
    let name = if table.is_bitmap(index) { "sector_bitmap" } else { "" };
    let entry =
        Element::field(Part::Table, name, place_of(table, index), 8, guest_of(table, index));
    let next = index.saturating_add(1);
    let next = (next < table.room_entries).then(|| (place_of(table, next), guest_of(table, next)));
    Element { next, ..entry.little_endian() }
}

fn place_of(table: &BlockTable, index: u64) -> HostOffset {
    table.offset + index.saturating_mul(BAT_ENTRY_BYTES as u64)
}

/// Returns the guest bytes that the entry at `index` maps. The entry of a sector bitmap maps none.
fn guest_of(table: &BlockTable, index: u64) -> Range<u64> {
    if table.is_bitmap(index) {
        return NOTHING;
    }
    let block_bytes = u64::from(table.block_bytes);
    let start = table.blocks_before(index).saturating_mul(block_bytes);
    start..start.saturating_add(block_bytes)
}

fn group(part: Part, start: HostOffset) -> FieldGroup {
    FieldGroup::new(part, start, ByteOrder::LittleEndian, OffsetUnit::Byte)
}

fn seal(start: HostOffset, length_bytes: usize) -> Seal {
    Seal { start, length_bytes, inside: CHECKSUM_AT, kind: SealKind::Crc32c }
}

/// Returns the meaning of a field or an entry of a VHDX image.
pub(super) fn spelled(part: Part, name: &str, value: u64) -> String {
    match (part, name) {
        (Part::Table, _) => block_entry(value),
        (Part::Directory, "required") => {
            if value & 1 != 0 { "readers must know the region" } else { "optional" }.to_string()
        }
        (Part::Metadata, "flags") => feature_names(value, &["user", "virtual disk", "required"]),
        (Part::Metadata, "file_parameters") => feature_names(value, &["fixed", "has a parent"]),
        _ => field_in_words(name, value, ByteOrder::LittleEndian),
    }
}

/// Returns the meaning of an entry of a block allocation table.
fn block_entry(value: u64) -> String {
    let (state, at) = (value & 7, value / OFFSET_UNIT_BYTES * OFFSET_UNIT_BYTES);
    let kept = if at == 0 { String::new() } else { format!(", offset {at:#x}") };
    let entry = match (BlockState::of_entry(value), state) {
        (BlockState::Stored(host), _) => format!("stored at {host:#x}"),
        (BlockState::Unreadable(what), _) => what.to_string(),
        (BlockState::Zeros, 0) => format!("not present{kept}"),
        (BlockState::Zeros, 1) => format!("undefined{kept}"),
        (BlockState::Zeros, 2) => format!("zeros{kept}"),
        (BlockState::Zeros, 3) => format!("unmapped{kept}"),
        (BlockState::Zeros, _) => format!("state {state}, which reads as zeros{kept}"),
    };
    with_reserved(entry, (value % OFFSET_UNIT_BYTES) & !7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_fields_have_a_meaning() {
        let entry = |value| spelled(Part::Table, "", value);
        assert_eq!(entry((5 << 20) | 6), "stored at 0x500000");
        assert_eq!(entry((5 << 20) | 2), "zeros, offset 0x500000");
        assert_eq!(entry(3), "unmapped");
        assert_eq!(entry(0x101), "undefined; reserved bits 0x100");
        assert!(entry(4).contains("state is 4"));
        assert_eq!(spelled(Part::Header, "log_length", 512), "512");
    }
}
