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

/// Returns a broken rule if QEMU, and every other way to read the image, breaks one. Where a format has copies of a
/// structure, a reader may use the copy that QEMU does not read. If there are several rules, this returns the last one
/// in `order`: a reader that answers with data lacks the check of this rule, or one before it.
pub(in crate::images) fn if_no_reading_is_left(
    order: &[BrokenRule],
    of_qemu: Option<BrokenRule>,
    others: impl Iterator<Item = Option<BrokenRule>>,
) -> Option<BrokenRule> {
    let place = |rule: BrokenRule| order.iter().position(|other| *other == rule);
    let mut last = of_qemu?;
    for other in others {
        let other = other?;
        last = if place(other) > place(last) { other } else { last };
    }
    Some(last)
}
