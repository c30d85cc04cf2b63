//! The partition invariant: extents tile the window. Does not check the mapping of the bytes.

use std::ops::Range;

use crate::disk::extent::Extent;

use super::{OracleResult, violation};

const ORACLE: &str = "partition";

/// Checks that `extents` tile `range`: the first begins at its start, each begins at the end of the one before, none
/// is empty or exceeds 64 bits, and the last ends at its end. An empty range has no extents.
pub fn check(extents: &[Extent], range: &Range<u64>) -> OracleResult {
    let at = prefix(extents, range)?;
    if at < range.end {
        let kinds = ("the window's end", "short of it");
        return violation(ORACLE, "end", kinds, || {
            format!("the last extent ends at {at}, the window at {}", range.end)
        });
    }
    Ok(())
}

/// Checks the extents of a walk that was stopped: they tile the beginning of `range`. Returns their end.
pub fn prefix(extents: &[Extent], range: &Range<u64>) -> Result<u64, Box<super::Violation>> {
    let mut at = range.start;
    for (index, extent) in extents.iter().enumerate() {
        let detail = || format!("extent {index}: {extent}, expected to start at {at}");
        let start = extent.start.get();
        if start != at {
            let kind = if start < at { "an overlap" } else { "a gap" };
            violation(ORACLE, "start", ("the last end", kind), detail)?;
        }
        if extent.length_bytes == 0 {
            violation(ORACLE, "length", ("at least 1", "0"), detail)?;
        }
        match extent.end().map(|end| end.get()) {
            None => violation(ORACLE, "end", ("within 64 bits", "past them"), detail)?,
            Some(end) if end > range.end => {
                violation(ORACLE, "end", ("the window's end", "past it"), detail)?;
            }
            Some(end) => at = end,
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::extent::Mapping;
    use crate::disk::offsets::GuestOffset;

    fn extents(ranges: &[(u64, u64)]) -> Vec<Extent> {
        let extent = |&(start, length_bytes): &(u64, u64)| Extent {
            start: GuestOffset::new(start),
            length_bytes,
            mapping: Mapping::HOLE,
        };
        ranges.iter().map(extent).collect()
    }

    fn found(ranges: &[(u64, u64)], window: Range<u64>) -> String {
        check(&extents(ranges), &window).unwrap_err().fingerprint()
    }

    #[test]
    fn a_tiling_passes() {
        assert!(check(&extents(&[(5, 5), (10, 90)]), &(5..100)).is_ok());
        assert!(check(&[], &(7..7)).is_ok());
    }

    #[test]
    fn every_way_not_to_tile_is_found() {
        let end = "partition: end, the window's end → ";
        assert_eq!(found(&[], 0..1), format!("{end}short of it"));
        assert_eq!(found(&[(0, 5)], 0..6), format!("{end}short of it"));
        assert_eq!(found(&[(0, 7)], 0..6), format!("{end}past it"));
        let start = "partition: start, the last end → ";
        assert_eq!(found(&[(1, 5)], 0..6), format!("{start}a gap"));
        assert_eq!(found(&[(0, 5), (4, 2)], 0..6), format!("{start}an overlap"));
        assert_eq!(found(&[(0, 3), (3, 0), (3, 3)], 0..6), "partition: length, at least 1 → 0");
        let overflow = found(&[(0, 3), (3, u64::MAX)], 0..6);
        assert_eq!(overflow, "partition: end, within 64 bits → past them");
        assert_eq!(found(&[(0, 1)], 0..0), format!("{end}past it"));
    }
}
