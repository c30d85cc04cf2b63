//! The anatomy of a VHD image: footers, dynamic header, table entries and bitmaps; and fields and entries in words.

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::anatomy::{
    Anatomy, ByteOrder, Element, FieldGroup, NOTHING, OffsetUnit, Part, Seal, SealKind,
    StructureField, field_in_words,
};
use crate::formats::error::MapError;
use crate::formats::vpc::constants::{
    DYNAMIC_HEADER_BYTES, FOOTER_BYTES, SECTOR_BYTES, TYPE_FIXED, UNALLOCATED, dynamic_header,
    footer,
};
use crate::formats::vpc::headers::{DynamicHeader, Footer};

impl Anatomy {
    /// Takes a VHD image apart.
    pub(in crate::formats) fn read_vpc<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
    ) -> Result<(), MapError> {
        let last = storage.length_bytes().saturating_sub(FOOTER_BYTES as u64);
        let first = read_footer(storage, HostOffset::ZERO)?;
        let at_end = read_footer(storage, HostOffset::new(last))?;
        if !Footer::is_at(&first) {
            self.sealed(HostOffset::new(last), FOOTER_BYTES, footer::CHECKSUM, footer::FIELDS);
            return Footer::parse(&at_end).map(|_| ());
        }
        self.sealed(HostOffset::ZERO, FOOTER_BYTES, footer::CHECKSUM, footer::FIELDS);
        let parsed = Footer::parse(&first)?;
        let header_at = HostOffset::new(parsed.data_offset);
        let mut bytes = [0; DYNAMIC_HEADER_BYTES];
        storage.read_at(header_at, &mut bytes)?;
        let fields = dynamic_header::FIELDS;
        self.sealed(header_at, DYNAMIC_HEADER_BYTES, dynamic_header::CHECKSUM, fields);
        let header = DynamicHeader::parse(&bytes, parsed.virtual_size_bytes())?;
        self.cluster_size = ClusterSize::from_bits(header.block_bytes.ilog2());
        if parsed.disk_type != TYPE_FIXED {
            self.table(storage, &header)?;
        }
        if Footer::is_at(&at_end) {
            // No reader needs this copy.
            self.add_structure(Part::Header, HostOffset::new(last), FOOTER_BYTES as u64);
            let copy = group(HostOffset::new(last)).elements(footer::FIELDS);
            copy.for_each(|field| self.push(Element { guest: NOTHING, ..field }));
        }
        Ok(())
    }

    /// Adds the fields of a structure with a checksum.
    fn sealed(
        &mut self,
        start: HostOffset,
        length_bytes: usize,
        checksum: StructureField,
        fields: &'static [StructureField],
    ) {
        self.add_structure(Part::Header, start, length_bytes as u64);
        let inside = checksum.at;
        let seal = Some(Seal { start, length_bytes, inside, kind: SealKind::ComplementOfSum });
        self.add_fields(FieldGroup { seal, ..group(start) }, fields);
    }

    /// Adds the entries of the table that name blocks, and the first byte of each block's bitmap.
    fn table<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &DynamicHeader,
    ) -> Result<(), MapError> {
        let table = (header.table_offset, header.entries.into());
        let (block_bytes, bitmap_bytes) = (header.block_bytes.into(), header.bitmap_bytes());
        self.add_blocks(
            storage,
            table,
            (block_bytes, ByteOrder::BigEndian),
            |anatomy, guest, entry| {
                let Some(data) = header.data_of(u32::from_be_bytes(entry)) else { return };
                anatomy.add_structure(Part::Payload, data, block_bytes);
                if bitmap_bytes > 0 {
                    let at = HostOffset::new(data.get().saturating_sub(bitmap_bytes));
                    anatomy.add_structure(Part::BlockFront, at, bitmap_bytes);
                    // QEMU does not read bitmaps. Other readers take a sector without a bit for zeros
                    // (specification, "Block Allocation Table and Data Blocks").
                    anatomy.push(Element::field(Part::BlockFront, "sectors", at, 1, guest));
                }
            },
        )
    }
}

fn group(start: HostOffset) -> FieldGroup {
    FieldGroup::new(Part::Header, start, ByteOrder::BigEndian, OffsetUnit::Byte)
}

/// Reads a sector that may be a footer. Bytes past the end of the file are zeros.
fn read_footer<S: Storage + ?Sized>(
    storage: &S,
    at: HostOffset,
) -> Result<[u8; FOOTER_BYTES], MapError> {
    let mut bytes = [0; FOOTER_BYTES];
    storage.read_at(at, &mut bytes)?;
    Ok(bytes)
}

/// Returns the meaning of a field or an entry of a VHD image.
pub(super) fn spelled(part: Part, name: &str, value: u64) -> String {
    match (part, name) {
        (Part::Table, _) if value == u64::from(UNALLOCATED) => "not stored".to_string(),
        (Part::Table, _) => format!("bitmap at {:#x}", value.saturating_mul(SECTOR_BYTES)),
        (_, "disk_type") => match value {
            2 => "fixed".to_string(),
            3 => "dynamic".to_string(),
            4 => "with a parent".to_string(),
            _ => format!("{value}: no meaning"),
        },
        _ => field_in_words(name, value, ByteOrder::BigEndian),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_fields_have_a_meaning() {
        assert_eq!(spelled(Part::Table, "", 4), "bitmap at 0x800");
        assert_eq!(spelled(Part::Table, "", 0xffff_ffff), "not stored");
        let cookie = u64::from_be_bytes(*b"conectix");
        assert_eq!(spelled(Part::Header, "cookie", cookie), "\"conectix\"");
        assert_eq!(spelled(Part::Header, "data_offset", 512), "0x200");
    }
}
