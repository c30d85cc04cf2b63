//! Fields and entries in words.

use crate::formats::anatomy::{ByteOrder, Part};
use crate::formats::vmdk::constants::{DIRECTORY_AT_END, SECTOR_BYTES};
use crate::formats::vmdk::grain::{Grain, offset_of};
use crate::formats::vmdk::tables::Tables;
use crate::formats::words::{features, field, text};

/// The upper half of both magic numbers of seSparse extents.
const SESPARSE_MAGICS: u64 = 0xcafe;

/// Returns the meaning of a field or an entry of a VMDK image. Without its `tables`, entries are sectors.
pub(super) fn spelled(part: Part, name: &str, value: u64, tables: Option<&Tables>) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_fields_have_a_meaning() {
        let mut tables = Tables::new(128, 1, 512).unwrap();
        let grain = |value, tables: &Tables| spelled(Part::Table, "", value, Some(tables));
        assert_eq!(grain(1, &tables), "grain at 0x200");
        tables.has_zeros = true;
        assert_eq!(
            [0, 1, 2].map(|it| grain(it, &tables)),
            ["not stored", "zeros", "grain at 0x400"]
        );
        assert_eq!(spelled(Part::Directory, "", 22, None), "table at 0x2c00");
        assert_eq!(spelled(Part::Header, "flags", 0x3_0003, None), {
            "newlines, redundant directory, compressed grains, markers"
        });
        let magic = u64::from(u32::from_le_bytes(*b"KDMV"));
        assert_eq!(spelled(Part::Header, "magic", magic, None), "\"KDMV\"");
    }
}
