//! Flags, in words.

/// Returns the meaning of an entry, with its reserved bits if any is set.
pub(super) fn with_reserved(entry: String, reserved: u64) -> String {
    if reserved == 0 { entry } else { format!("{entry}; reserved bits {reserved:#x}") }
}

/// Returns the names of the bits that are set. `names` begins with that of bit 0.
pub(super) fn features(value: u64, names: &[&str]) -> String {
    if value == 0 {
        return "none".to_string();
    }
    let set = (0..64).filter(|bit| value & 1 << bit != 0);
    let name =
        |bit: usize| names.get(bit).map_or_else(|| format!("bit {bit}"), |it| it.to_string());
    set.map(name).collect::<Vec<_>>().join(", ")
}
