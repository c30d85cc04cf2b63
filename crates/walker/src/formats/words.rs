//! Values of fields in words, for people.

use crate::formats::anatomy::ByteOrder;

/// Returns the meaning of an entry, with its reserved bits if any is set.
pub fn with_reserved(entry: String, reserved: u64) -> String {
    if reserved == 0 { entry } else { format!("{entry}; reserved bits {reserved:#x}") }
}

/// Returns the names of the bits that are set. `names` begins with that of bit 0.
pub fn features(value: u64, names: &[&str]) -> String {
    if value == 0 {
        return "none".to_string();
    }
    let set = (0..64).filter(|bit| value & 1 << bit != 0);
    let name =
        |bit: usize| names.get(bit).map_or_else(|| format!("bit {bit}"), |it| it.to_string());
    set.map(name).collect::<Vec<_>>().join(", ")
}

/// Returns the value of a field; the name decides how it is written.
pub fn field(name: &str, value: u64, order: ByteOrder) -> String {
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
pub fn text(value: u64, order: ByteOrder) -> String {
    let bytes = match order {
        ByteOrder::BigEndian => value.to_be_bytes(),
        ByteOrder::LittleEndian => value.to_le_bytes(),
    };
    let there: Vec<u8> = bytes.into_iter().filter(|byte| *byte != 0).collect();
    format!("\"{}\"", there.escape_ascii())
}
