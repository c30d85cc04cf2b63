//! The parts of a file that no block may overlap: the log, and the regions of the region table.
//!
//! # Arithmetic
//! As in QEMU, the end of a region wraps around at 2^64. Such a region overlaps nothing before its start.

use crate::disk::offsets::HostOffset;

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    start: u64,
    end: u64,
}

impl Region {
    /// Creates the region of `length_bytes` at `start`.
    pub fn new(start: HostOffset, length_bytes: u32) -> Self {
        Self { start: start.get(), end: start.get().wrapping_add(length_bytes.into()) }
    }

    /// Reports whether two regions overlap (QEMU `block/vhdx.c`, `vhdx_region_check`). A region without bytes overlaps
    /// one that surrounds it.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// Regions, in an order in which an overlap is quickly found.
#[derive(Clone, Debug)]
pub struct Regions {
    /// The start of each region in ascending order, and the largest end of it and all before it.
    starts: Vec<Region>,
}

impl Regions {
    /// Sorts regions.
    pub fn new(mut regions: Vec<Region>) -> Self {
        regions.sort_unstable_by_key(|region| region.start);
        let mut end = 0;
        for region in &mut regions {
            end = region.end.max(end);
            region.end = end;
        }
        Self { starts: regions }
    }

    /// Reports whether any region overlaps `part`.
    pub fn overlap(&self, part: &Region) -> bool {
        let before = self.starts.partition_point(|region| region.start < part.end);
        let last = before.checked_sub(1).and_then(|last| self.starts.get(last));
        last.is_some_and(|last| part.start < last.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, length_bytes: u32) -> Region {
        Region::new(HostOffset::new(start), length_bytes)
    }

    #[test]
    fn the_search_finds_what_each_region_says() {
        let sets: [&[(u64, u32)]; 4] = [
            &[],
            &[(4, 4), (8, 2), (20, 0), (12, 3)],
            &[(5, 0), (u64::MAX - 3, 10), (7, 1)],
            &[(0, 30), (2, 3), (9, 1)],
        ];
        for set in sets {
            let each: Vec<Region> =
                set.iter().map(|(start, length)| region(*start, *length)).collect();
            let sorted = Regions::new(each.clone());
            for start in (0..24).chain(u64::MAX - 6..=u64::MAX) {
                for length in 0..8 {
                    let part = region(start, length);
                    let expected = each.iter().any(|region| region.overlaps(&part));
                    assert_eq!(sorted.overlap(&part), expected, "{part:?} in {each:?}");
                }
            }
        }
    }
}
