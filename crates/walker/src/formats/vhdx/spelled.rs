//! Fields and entries in words.

use crate::formats::anatomy::{ByteOrder, Part};
use crate::formats::vhdx::block_table::BlockState;
use crate::formats::vhdx::constants::OFFSET_UNIT_BYTES;
use crate::formats::words::{features, field, with_reserved};

/// Returns the meaning of a field or an entry of a VHDX image.
pub(super) fn spelled(part: Part, name: &str, value: u64) -> String {
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
