//! Fields and entries of VHD, VHDX and VMDK images, in words.

use crate::formats::anatomy::{ByteOrder, Part};
use crate::formats::vhdx::block_table::BlockState;
use crate::formats::vhdx::constants::OFFSET_UNIT_BYTES;
use crate::formats::vmdk::constants::{DIRECTORY_AT_END, SECTOR_BYTES};
use crate::formats::vmdk::grain::{Grain, offset_of};
use crate::formats::vmdk::tables::Tables;
use crate::formats::vpc::constants::UNALLOCATED;

use super::flags::{features, with_reserved};

/// The upper half of both magic numbers of seSparse extents.
const SESPARSE_MAGICS: u64 = 0xcafe;

/// Returns the meaning of a field or an entry of a VHD image.
pub(super) fn vpc(part: Part, name: &str, value: u64) -> String {
    match (part, name) {
        (Part::Table, _) if value == u64::from(UNALLOCATED) => "not stored".to_string(),
        (Part::Table, _) => format!("bitmap at {:#x}", value.saturating_mul(SECTOR_BYTES)),
        (_, "disk_type") => match value {
            2 => "fixed".to_string(),
            3 => "dynamic".to_string(),
            4 => "with a parent".to_string(),
            _ => format!("{value}: no meaning"),
        },
        _ => field(name, value, ByteOrder::BigEndian),
    }
}

/// Returns the meaning of a field or an entry of a VHDX image.
pub(super) fn vhdx(part: Part, name: &str, value: u64) -> String {
    match (part, name) {
        (Part::Table, _) => block(value),
        (Part::Directory, "required") => {
            if value & 1 != 0 { "readers must know the region" } else { "optional" }.to_string()
        }
        (Part::Metadata, "flags") => features(value, &["user", "virtual disk", "required"]),
        (Part::Metadata, "file_parameters") => features(value, &["fixed", "has a parent"]),
        _ => field(name, value, ByteOrder::LittleEndian),
    }
}

/// Returns the meaning of an entry of a block allocation table.
fn block(value: u64) -> String {
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

/// Returns the meaning of a field or an entry of a VMDK image. Without its `tables`, entries are sectors.
pub(super) fn vmdk(part: Part, name: &str, value: u64, tables: Option<&Tables>) -> String {
    match (part, name) {
        (Part::Directory, _) => directory_entry(value, tables),
        (Part::Table, _) => grain(value, tables),
        (Part::Metadata, _) => text(value, ByteOrder::LittleEndian),
        (_, "gd_offset") if value == DIRECTORY_AT_END => "stated by the footer".to_string(),
        (_, "flags") => vmdk_flags(value),
        (_, "compress_algorithm") => match value {
            0 => "none".to_string(),
            1 => "deflate".to_string(),
            _ => format!("{value}: none that readers know"),
        },
        (_, "marker_type") => match value {
            0 => "end of the stream".to_string(),
            1 => "grain table".to_string(),
            2 => "grain directory".to_string(),
            3 => "footer".to_string(),
            _ => format!("{value}: no meaning"),
        },
        (_, "gd_offset" | "rgd_offset" | "descriptor_offset") => {
            format!("sector {value}, at {:#x}", value.saturating_mul(SECTOR_BYTES))
        }
        // Text in all extents but seSparse.
        (_, "magic") if value >> 16 == SESPARSE_MAGICS => format!("{value:#x}"),
        _ => field(name, value, ByteOrder::LittleEndian),
    }
}

fn directory_entry(value: u64, tables: Option<&Tables>) -> String {
    let table = match tables {
        Some(tables) => tables.table_of(value),
        None => Ok((value != 0).then(|| offset_of(value))),
    };
    match table {
        Ok(None) => "no table".to_string(),
        Ok(Some(table)) => format!("table at {table:#x}"),
        Err(fault) => fault.to_string(),
    }
}

fn grain(value: u64, tables: Option<&Tables>) -> String {
    let Some(tables) = tables else { return format!("sector {value}") };
    let kind = if tables.is_compressed() { "compressed grain" } else { "grain" };
    match tables.grain_of(value) {
        Ok(Grain::Unallocated) => "not stored".to_string(),
        Ok(Grain::Zero) => "zeros".to_string(),
        Ok(Grain::At(host)) => format!("{kind} at {host:#x}"),
        Err(fault) => fault.to_string(),
    }
}

fn vmdk_flags(value: u64) -> String {
    // Bits 3 to 15 have no name.
    let low = features(value & 0xffff, &["newlines", "redundant directory", "zero grains"]);
    match (value & 0xffff, value >> 16) {
        (_, 0) => low,
        (0, high) => features(high, &["compressed grains", "markers"]),
        (_, high) => format!("{low}, {}", features(high, &["compressed grains", "markers"])),
    }
}

/// Returns the value of a field; the name decides how it is written.
fn field(name: &str, value: u64, order: ByteOrder) -> String {
    let names = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    if names(&["signature", "magic", "cookie", "creator"]) {
        text(value, order)
    } else if names(&["offset", "guid", "checksum", "_id", "page_83", "lba", "zlib", "deflate"]) {
        format!("{value:#x}")
    } else {
        value.to_string()
    }
}

/// Returns the bytes of a field as text, without zeros.
fn text(value: u64, order: ByteOrder) -> String {
    let bytes = match order {
        ByteOrder::BigEndian => value.to_be_bytes(),
        ByteOrder::LittleEndian => value.to_le_bytes(),
    };
    let there: Vec<u8> = bytes.into_iter().filter(|byte| *byte != 0).collect();
    format!("\"{}\"", there.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_a_meaning() {
        let vhdx = |value| vhdx(Part::Table, "", value);
        assert_eq!(vhdx((5 << 20) | 6), "stored at 0x500000");
        assert_eq!(vhdx((5 << 20) | 2), "zeros, offset 0x500000");
        assert_eq!(vhdx(3), "unmapped");
        assert_eq!(vhdx(0x101), "undefined; reserved bits 0x100");
        assert!(vhdx(4).contains("state is 4"));
        let mut tables = Tables::new(128, 1, 512).unwrap();
        let grain = |value, tables: &Tables| vmdk(Part::Table, "", value, Some(tables));
        assert_eq!(grain(1, &tables), "grain at 0x200");
        tables.has_zeros = true;
        assert_eq!(
            [0, 1, 2].map(|it| grain(it, &tables)),
            ["not stored", "zeros", "grain at 0x400"]
        );
        assert_eq!(vmdk(Part::Directory, "", 22, None), "table at 0x2c00");
        assert_eq!(vmdk(Part::Header, "flags", 0x3_0003, None), {
            "newlines, redundant directory, compressed grains, markers"
        });
        assert_eq!(vpc(Part::Table, "", 4), "bitmap at 0x800");
        assert_eq!(vpc(Part::Table, "", 0xffff_ffff), "not stored");
    }

    #[test]
    fn fields_of_letters_are_text() {
        let magic = u64::from(u32::from_le_bytes(*b"KDMV"));
        assert_eq!(vmdk(Part::Header, "magic", magic, None), "\"KDMV\"");
        assert_eq!(vpc(Part::Header, "cookie", u64::from_be_bytes(*b"conectix")), "\"conectix\"");
        assert_eq!(vpc(Part::Header, "data_offset", 512), "0x200");
        assert_eq!(vhdx(Part::Header, "log_length", 512), "512");
    }
}
