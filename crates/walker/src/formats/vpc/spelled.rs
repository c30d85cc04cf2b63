//! Fields and entries in words.

use crate::formats::anatomy::{ByteOrder, Part};
use crate::formats::vpc::constants::{SECTOR_BYTES, UNALLOCATED};
use crate::formats::words::field;

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
        _ => field(name, value, ByteOrder::BigEndian),
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
