//! The extents equal the reference model's, field by field. Does not check the location of compressed data, which
//! extents do not contain: `data` and `refcounts` do.

use std::ops::Range;

use crate::disk::extent::{Extent, Mapping};
use crate::disk::offsets::GuestOffset;
use crate::harness::oracles::{OracleResult, SetAside, differing_field, violation, violation_at};

const ORACLE: &str = "model";

/// Compares the extents of the whole disk. Both lists tile it.
///
/// The fingerprint describes the first byte on which the engine and the model disagree, so a wrong answer has one
/// fingerprint whether or not it merges with the extent before it.
pub fn check(expected: &[Extent], actual: &[Extent]) -> OracleResult {
    let differing = (0..expected.len().min(actual.len())).find(|&at| expected[at] != actual[at]);
    let Some(at) = differing else {
        return check_count(expected.len(), actual.len());
    };
    let (guest, field, kinds) = first_difference(&expected[at..], &actual[at..]);
    violation_at(guest, ORACLE, field, kinds, || {
        format!("expected {}\nactual   {}", expected[at], actual[at])
    })
}

/// Compares the extents as [`check`] does, and goes on behind the bytes of a difference that is set aside.
pub fn check_all(
    expected: &[Extent],
    actual: &[Extent],
    clipped: &mut [Vec<Extent>; 2],
    set_aside: &mut SetAside,
) -> OracleResult {
    match check(expected, actual) {
        Ok(()) => Ok(()),
        Err(_) => check_range(expected, actual, 0..u64::MAX, clipped, set_aside),
    }
}

/// Compares the extents in a range that is not empty, and goes on behind the bytes of a difference that is set aside.
fn check_range(
    expected: &[Extent],
    actual: &[Extent],
    range: Range<u64>,
    [meant, found]: &mut [Vec<Extent>; 2],
    set_aside: &mut SetAside,
) -> OracleResult {
    let mut from = range.start;
    loop {
        clip(expected, &(from..range.end), meant);
        clip(actual, &(from..range.end), found);
        let Err(violation) = check(meant, found) else { return Ok(()) };
        set_aside(violation)?;
        match behind_difference(meant, found) {
            Some(behind) if behind > from => from = behind,
            _ => return Ok(()),
        }
    }
}

/// Returns the end of the first range in which two lists differ; `None` if a list ends before it. The range ends where
/// the first extent of either list does, so each list has one mapping there.
fn behind_difference(expected: &[Extent], actual: &[Extent]) -> Option<u64> {
    let at = (0..expected.len().min(actual.len())).find(|&at| expected[at] != actual[at])?;
    let (meant, found) = (&expected[at], &actual[at]);
    let edge = meant.end()?.get().min(found.end()?.get());
    if meant.mapping != found.mapping {
        return Some(edge);
    }
    let end_there = |extents: &[Extent]| {
        let there = extents.iter().find(|it| it.end().is_some_and(|end| end.get() > edge))?;
        Some(there.end()?.get())
    };
    Some(end_there(&expected[at..])?.min(end_there(&actual[at..])?))
}

/// Compares the extents between the `touched` ranges, which are in order, up to the end of the shorter disk. Both lists
/// tile the beginning of a disk.
pub fn check_outside(
    touched: impl Iterator<Item = Range<u64>>,
    expected: &[Extent],
    actual: &[Extent],
    clipped: &mut [Vec<Extent>; 2],
    set_aside: &mut SetAside,
) -> OracleResult {
    let end_of =
        |extents: &[Extent]| extents.last().and_then(Extent::end).map_or(0, |end| end.get());
    let end = end_of(expected).min(end_of(actual));
    let mut from = 0;
    let last = std::iter::once(end..end);
    for touched in touched.filter(|touched| !touched.is_empty()).chain(last) {
        let range = from..touched.start.min(end);
        if !range.is_empty() {
            check_range(expected, actual, range, clipped, set_aside)?;
        }
        from = from.max(touched.end);
    }
    Ok(())
}

/// Puts the part of `extents` that lies in `range` into `into`. `extents` tile the beginning of a disk.
pub(crate) fn clip(extents: &[Extent], range: &Range<u64>, into: &mut Vec<Extent>) {
    into.clear();
    let first =
        extents.partition_point(|extent| extent.end().is_some_and(|end| end.get() <= range.start));
    for extent in &extents[first..] {
        let start = extent.start.get();
        if start >= range.end {
            break;
        }
        let from = start.max(range.start);
        // `partition` has checked the ends of the walk's extents, and those of the model end with its disk.
        let until = start.saturating_add(extent.length_bytes).min(range.end);
        let Some(mapping) = extent.mapping.advanced(from - start) else { continue };
        // Extents that do not tile may end before the range.
        let Some(length_bytes) = until.checked_sub(from) else { continue };
        into.push(Extent { start: GuestOffset::new(from), length_bytes, mapping });
    }
}

/// Returns the first byte on which two lists of extents disagree, with its field and kinds. Their first extents begin
/// at the same byte and differ.
fn first_difference(
    expected: &[Extent],
    actual: &[Extent],
) -> (GuestOffset, &'static str, (&'static str, &'static str)) {
    let start = expected[0].start;
    let behind = expected[0].length_bytes.min(actual[0].length_bytes);
    let here = (Some(expected[0].mapping), Some(actual[0].mapping));
    let there = (mapping_after(expected, behind), mapping_after(actual, behind));
    for (guest, mappings) in [(start, here), (start + behind, there)] {
        if let (Some(expected), Some(actual)) = mappings
            && let Some(field) = differing_field(&expected, &actual)
        {
            return (guest, field, (expected.kind(), actual.kind()));
        }
    }
    // One of them ends here, or has two extents instead of one.
    let shorter = actual[0].length_bytes == behind;
    let kinds = (expected[0].mapping.kind(), if shorter { "shorter" } else { "longer" });
    (start + behind, "length", kinds)
}

/// Returns the mapping of the byte `behind` bytes after the start of the list. The first extent covers that byte or
/// ends there.
fn mapping_after(extents: &[Extent], behind: u64) -> Option<Mapping> {
    match extents {
        [first, ..] if first.length_bytes > behind => first.mapping.advanced(behind),
        [_, next, ..] => Some(next.mapping),
        _ => None,
    }
}

fn check_count(expected: usize, actual: usize) -> OracleResult {
    if expected == actual {
        return Ok(());
    }
    let more = actual > expected;
    violation(ORACLE, "extents", ("all", if more { "more" } else { "fewer" }), || {
        format!("expected {expected} extents, actual {actual}")
    })
}

/// Compares the size of the disk.
pub fn check_size(expected: u64, actual: u64) -> OracleResult {
    if expected == actual {
        return Ok(());
    }
    let kind = if actual < expected { "smaller" } else { "larger" };
    violation(ORACLE, "virtual size", ("the journal's", kind), || {
        format!("expected {expected} bytes, actual {actual}")
    })
}

#[cfg(test)]
mod tests {
    use crate::disk::offsets::HostOffset;

    use super::*;

    fn normal(start: u64, length_bytes: u64, host: u64) -> Extent {
        let data = Mapping { present: true, zero: false, data: true, ..Mapping::HOLE };
        let mapping = Mapping { offset: Some(HostOffset::new(host)), ..data };
        Extent { start: GuestOffset::new(start), length_bytes, mapping }
    }

    #[test]
    fn differences_are_named_by_field_and_kind() {
        let expected = [normal(0, 512, 4096), normal(512, 512, 8192)];
        let found = |actual: &[Extent]| check(&expected, actual).unwrap_err().fingerprint();
        assert!(check(&expected, &expected).is_ok());
        let hole = Extent { mapping: Mapping::HOLE, ..expected[0] };
        assert_eq!(found(&[hole, expected[1]]), "model: kind, normal → unallocated");
        let elsewhere = normal(512, 512, 8704);
        assert_eq!(found(&[expected[0], elsewhere]), "model: offset, normal → normal");
        assert_eq!(found(&[normal(0, 511, 4096)]), "model: length, normal → shorter");
        assert_eq!(found(&expected[..1]), "model: extents, all → fewer");
    }

    #[test]
    fn a_wrong_answer_is_named_alike_whether_it_merges_or_not() {
        let zero = Mapping { present: true, ..Mapping::HOLE };
        let allocated = Mapping { offset: Some(HostOffset::new(8192)), ..zero };
        let extent = |start, length_bytes, mapping| Extent {
            start: GuestOffset::new(start),
            length_bytes,
            mapping,
        };
        let expected = [extent(0, 512, zero), extent(512, 512, allocated), normal(1024, 512, 4096)];
        let name = |actual: &[Extent]| check(&expected, actual).unwrap_err().fingerprint();
        let apart = [expected[0], extent(512, 512, zero), expected[2]];
        let merged = [extent(0, 1024, zero), expected[2]];
        assert_eq!(name(&apart), "model: kind, zero-allocated → zero-plain");
        assert_eq!(name(&merged), name(&apart));
        // The engine merged zeros with the extent after them: the first extent ends too early.
        let early = [extent(0, 256, zero), normal(256, 512, 4096)];
        assert_eq!(name(&early), "model: kind, zero-plain → normal");
    }

    #[test]
    fn what_runs_on_in_the_wrong_place_has_the_wrong_offset() {
        let expected = [normal(0, 512, 4096), normal(512, 512, 8192)];
        let merged = [normal(0, 1024, 4096)];
        let found = check(&expected, &merged).unwrap_err().fingerprint();
        assert_eq!(found, "model: offset, normal → normal");
    }

    #[test]
    fn sizes_are_compared() {
        assert!(check_size(512, 1024).is_err());
    }
}
