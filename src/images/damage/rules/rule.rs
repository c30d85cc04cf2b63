//! Names of rules, and the entries that break one.

use std::ops::Range;

/// The name of a rule that an image breaks. Fingerprints contain it.
pub type BrokenRule = &'static str;

/// A guest range that QEMU does not read, because an entry breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenEntry {
    /// The rule.
    pub rule: BrokenRule,
    /// The guest range. It may reach past the end of the disk.
    pub guest: Range<u64>,
    /// QEMU reports a mapping of the range all the same. Only reads must fail.
    pub is_mapped: bool,
}

/// Returns the rule that QEMU breaks first, if every other way to read the image breaks a rule, too. Where a format has
/// copies of a structure, a reader may use the copy that QEMU does not read.
pub(super) fn if_no_reading_is_left(
    of_qemu: Option<BrokenRule>,
    mut others: impl Iterator<Item = Option<BrokenRule>>,
) -> Option<BrokenRule> {
    of_qemu.filter(|_| others.all(|other| other.is_some()))
}
