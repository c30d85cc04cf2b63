//! A comparison of two implementations: the parts of a disk whose data are compared, and the violations for the
//! differences. The parts are the first 4 MiB of data, zeros and small holes, and the first and last sectors of all
//! other extents.
//!
//! # Arithmetic
//! The end of an extent that passes 2^64 lies past the end of the disk, and is cut there.

use std::ops::Range;

use crate::disk::extent::{Extent, Mapping};
use crate::disk::offsets::GuestOffset;
use crate::harness::oracles::{
    OracleResult, Violation, differing_field, disagreement, disagreement_with, violation,
};

/// The other implementation, as findings name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Other<'n> {
    /// The first word of the fingerprints.
    pub(crate) oracle: &'static str,
    /// The word for a value of the implementation in fingerprints.
    pub(crate) whose: &'static str,
    /// The name in details.
    pub(crate) name: &'n str,
}

impl Other<'_> {
    /// Compares the sizes of a disk in bytes.
    pub(crate) fn check_size(&self, theirs: u64, ours: u64) -> OracleResult {
        if theirs == ours {
            return Ok(());
        }
        let (name, actual) = (self.name, if ours < theirs { "smaller" } else { "larger" });
        violation(self.oracle, "size", (self.whose, actual), || {
            format!("{name} finds a disk of {theirs} bytes, the implementation one of {ours}")
        })
    }

    /// Returns the violation of an image that only the other implementation opens. `error` is that of the engine.
    pub(crate) fn opens_alone(&self, error: &str) -> Box<Violation> {
        let detail =
            format!("{} opens the image, and the implementation does not: {error}", self.name);
        disagreement_with(error, self.oracle, "open", ("opened", "refused"), detail)
    }

    /// Returns the violation of an image that only the engine opens.
    pub(crate) fn refuses_alone(&self, error: &str) -> Box<Violation> {
        let detail =
            format!("the implementation opens the image, and {} does not: {error}", self.name);
        disagreement_with(error, self.oracle, "open", ("refused", "opened"), detail)
    }

    /// Returns the violation of a walk that fails in the engine, while the other implementation maps the whole disk.
    pub(crate) fn walks_alone(&self, error: &str) -> Box<Violation> {
        let detail = format!("{} maps all of the disk, and the walk ends: {error}", self.name);
        disagreement_with(error, self.oracle, "walk", ("an answer", "an error"), detail)
    }

    /// Returns the violation of data that only the other implementation reads.
    pub(crate) fn reads_alone(&self, start: u64, length_bytes: u64) -> Box<Violation> {
        let detail =
            format!("{} reads {length_bytes} bytes, and the implementation does not", self.name);
        let kinds = ("an answer", "an error");
        disagreement(self.oracle, "data", kinds, detail).at(GuestOffset::new(start))
    }

    /// Returns the violation of data that only the engine reads.
    pub(crate) fn unread(&self, start: u64, extents: &[Extent], error: &str) -> Box<Violation> {
        let kinds = ("an error", kind_at(extents, start));
        let (name, error) = (self.name, error.trim());
        let detail = format!("the implementation reads data, and {name} does not: {error}");
        disagreement(self.oracle, "data", kinds, detail).at(GuestOffset::new(start))
    }

    pub(crate) fn other_byte(&self, at: u64, extents: &[Extent]) -> Box<Violation> {
        let name = self.name;
        let detail = format!("the implementation reads another byte than {name}");
        let kinds = (kind_at(extents, at), "other bytes");
        disagreement(self.oracle, "data", kinds, detail).at(GuestOffset::new(at))
    }

    /// Returns the violation of two extents that begin at the same byte and differ.
    pub(crate) fn other_extent(&self, theirs: &Extent, ours: &Extent) -> Box<Violation> {
        let field = differing_field(&theirs.mapping, &ours.mapping).unwrap_or("length");
        let detail = format!("{}: {theirs}; the implementation: {ours}", self.name);
        let kinds = (theirs.mapping.kind(), ours.mapping.kind());
        disagreement(self.oracle, map_field(field), kinds, detail)
    }
}

/// Returns the name of a field of a map in fingerprints.
pub(crate) fn map_field(field: &'static str) -> &'static str {
    match field {
        "kind" => "map: kind",
        "depth" => "map: depth",
        "offset" => "map: offset",
        "length" => "map: length",
        "extents" => "map: extents",
        _ => "map: flags",
    }
}

/// Returns the kind of the extent with a guest byte.
fn kind_at(extents: &[Extent], at: u64) -> &'static str {
    let next = extents.partition_point(|extent| extent.start.get() <= at);
    let found = next.checked_sub(1).and_then(|index| extents.get(index));
    found.map_or("unmapped", |extent| Mapping::kind(&extent.mapping))
}

/// Fills `merged` with `extents`, and replaces each mapping by the result of `mapping_of`. Extents that then continue
/// each other become one.
pub(crate) fn merged(
    extents: &[Extent],
    mapping_of: impl Fn(Mapping) -> Mapping,
    merged: &mut Vec<Extent>,
) {
    merged.clear();
    for extent in extents {
        let mapping = mapping_of(extent.mapping);
        match merged.last_mut() {
            Some(last) if last.mapping.continues_as(last.length_bytes, &mapping) => {
                // A length that is held at 2^64 lies past the end of every disk.
                last.length_bytes = last.length_bytes.saturating_add(extent.length_bytes);
            }
            _ => merged.push(Extent { mapping, ..*extent }),
        }
    }
}

/// QEMU counts the bytes of a disk in sectors.
pub(crate) const SECTOR_BYTES: u64 = 512;
/// The number of bytes of a disk that are compared, in addition to edges.
const MAX_COMPARED_BYTES: u64 = 4 << 20;
/// A hole up to this length is compared whole: one read costs less than two.
const MAX_WHOLE_HOLE_BYTES: u64 = 64 << 10;
/// The highest number of parts of a disk.
const MAX_WINDOWS: usize = 64;

/// Puts the parts of a disk of `size_bytes` into `windows`, without the extents that `is_left_out` names. They are
/// sorted and whole sectors, up to the end of the disk.
pub(crate) fn plan_windows(
    size_bytes: u64,
    extents: &[Extent],
    is_left_out: impl Fn(&Extent) -> bool,
    windows: &mut Vec<Range<u64>>,
) {
    windows.clear();
    if extents.is_empty() {
        windows.push(0..size_bytes.min(MAX_COMPARED_BYTES));
    }
    let (mut left, mut from) = (MAX_COMPARED_BYTES, 0);
    for extent in extents {
        let start = (extent.start.get() / SECTOR_BYTES * SECTOR_BYTES).max(from);
        let end = extent.start.get().saturating_add(extent.length_bytes);
        let end = end.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX).min(size_bytes);
        if start >= end || is_left_out(extent) {
            continue;
        }
        let length = end - start;
        let is_hole = !extent.mapping.present || extent.mapping == Mapping::HOLE;
        let whole = if is_hole { left.min(MAX_WHOLE_HOLE_BYTES) } else { left };
        if length <= whole {
            left -= length;
            add(windows, start..end);
        } else {
            let first = if is_hole { SECTOR_BYTES } else { left.max(SECTOR_BYTES) };
            // The last sector of a disk may not be whole.
            add(windows, start..start.saturating_add(first).min(end));
            left = left.saturating_sub(first);
            add(windows, end.saturating_sub(SECTOR_BYTES).max(start)..end);
        }
        from = end;
        if windows.len() >= MAX_WINDOWS {
            break;
        }
    }
    windows.retain(|window| !window.is_empty());
}

/// Adds a part behind all others.
fn add(windows: &mut Vec<Range<u64>>, window: Range<u64>) {
    match windows.last_mut() {
        Some(last) if last.end >= window.start => last.end = last.end.max(window.end),
        _ => windows.push(window),
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::offsets::{GuestOffset, HostOffset};

    use super::*;

    const DATA: Mapping =
        Mapping { present: true, data: true, offset: Some(HostOffset::ZERO), ..Mapping::HOLE };

    fn planned(size_bytes: u64, lengths: &[(u64, Mapping)]) -> Vec<(u64, u64)> {
        let mut start = 0;
        let extents: Vec<_> = lengths
            .iter()
            .map(|(length_bytes, mapping)| {
                let extent = Extent {
                    start: GuestOffset::new(start),
                    length_bytes: *length_bytes,
                    mapping: *mapping,
                };
                start += length_bytes;
                extent
            })
            .collect();
        let mut windows = Vec::new();
        plan_windows(size_bytes, &extents, |_| false, &mut windows);
        windows.into_iter().map(|window| (window.start, window.end)).collect()
    }

    #[test]
    fn a_small_disk_is_one_window() {
        let hole = Mapping::HOLE;
        assert_eq!(planned(9216, &[(4096, DATA), (1024, hole), (4096, DATA)]), [(0, 9216)]);
        assert_eq!(planned(512, &[]), [(0, 512)]);
        assert!(planned(0, &[]).is_empty());
    }

    #[test]
    fn large_holes_have_edges_and_long_data_a_beginning_and_an_end() {
        let mib = 1 << 20;
        let windows =
            planned(103 * mib, &[(mib, DATA), (100 * mib, Mapping::HOLE), (2 * mib, DATA)]);
        assert_eq!(windows, [(0, mib + 512), (101 * mib - 512, 103 * mib)]);
        assert_eq!(planned(9 * mib, &[(9 * mib, DATA)]), [(0, 4 * mib), (9 * mib - 512, 9 * mib)]);
        // An extent that begins within a sector shares it with the one before.
        assert_eq!(planned(1024, &[(700, DATA), (324, Mapping::HOLE)]), [(0, 1024)]);
        assert_eq!(planned(u64::MAX - 511, &[(u64::MAX, Mapping::HOLE)]).len(), 2);
    }
}
