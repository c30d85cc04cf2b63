//! The parts of a disk whose data are compared: all data and zeros up to 4 MiB, small holes between them, and the edges
//! of other extents.
//!
//! # Arithmetic
//! The end of an extent that passes 2^64 lies past the end of the disk, and is cut there.

use std::ops::Range;

use crate::disk::extent::{Extent, Mapping};

/// QEMU counts the bytes of a disk in sectors.
pub(in crate::harness) const SECTOR_BYTES: u64 = 512;
/// The number of bytes of a disk that are compared, in addition to edges.
const MAX_COMPARED_BYTES: u64 = 4 << 20;
/// A hole up to this length is compared whole: one read costs less than two.
const MAX_WHOLE_HOLE_BYTES: u64 = 64 << 10;
/// The highest number of parts of a disk.
const MAX_WINDOWS: usize = 64;

/// Puts the parts of a disk of `size_bytes` into `windows`, without the extents that `is_left_out` names. They are
/// sorted and whole sectors, up to the end of the disk.
pub(in crate::harness) fn plan(
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
    use super::*;
    use crate::disk::offsets::{GuestOffset, HostOffset};

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
        plan(size_bytes, &extents, |_| false, &mut windows);
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
