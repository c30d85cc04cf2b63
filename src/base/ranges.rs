//! Ranges of bytes, and their contents.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::disk::offsets::GuestOffset;

/// Ranges that do not overlap, each with a value. Bytes outside of all ranges have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeMap<T> {
    /// The end and the value of each range, by its start.
    ranges: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for RangeMap<T> {
    fn default() -> Self {
        Self { ranges: BTreeMap::new() }
    }
}

impl<T: Clone> RangeMap<T> {
    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Gives a range a value, in place of its old ones.
    pub fn insert(&mut self, range: Range<u64>, value: T) {
        self.remove(range.clone());
        if !range.is_empty() {
            self.ranges.insert(range.start, (range.end, value));
        }
    }

    /// Takes the values of a range away. Other parts of the ranges that it meets stay.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        while let Some((start, _)) = self.ranges.range(range.clone()).next() {
            let start = *start;
            self.ranges.remove(&start);
        }
    }

    /// Returns the value of a byte, and the offset at which another value, or none, begins.
    pub fn at(&self, offset: u64) -> (Option<&T>, u64) {
        if let Some((_, (end, value))) = self.ranges.range(..=offset).next_back()
            && *end > offset
        {
            return (Some(value), *end);
        }
        let next = self.ranges.range(offset..).next();
        (None, next.map_or(u64::MAX, |(start, _)| *start))
    }

    /// Returns all ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &T)> {
        self.ranges.iter().map(|(start, (end, value))| (*start..*end, value))
    }

    /// Ends a range that goes on behind this offset, and begins another one there.
    fn split(&mut self, at: u64) {
        let before = self.ranges.range_mut(..at).next_back();
        if let Some((_, (end, value))) = before.filter(|(_, (end, _))| *end > at) {
            let rest = (*end, value.clone());
            *end = at;
            self.ranges.insert(at, rest);
        }
    }
}

/// Bytes that a guest must read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownBytes {
    /// The guest offset of the first one.
    pub guest: GuestOffset,
    /// The bytes.
    pub bytes: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_as_in_an_array() {
        let mut state = 3u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            (state >> 33) % limit
        };
        for _ in 0..200 {
            let (mut map, mut flat) = (RangeMap::default(), [None; 64]);
            for value in 0..12 {
                let start = below(64);
                let range = start..below(65).max(start);
                let value = (below(3) > 0).then_some(value);
                flat[range.start as usize..range.end as usize].fill(value);
                match value {
                    Some(value) => map.insert(range, value),
                    None => map.remove(range),
                }
            }
            for at in 0..64 {
                let (value, end) = map.at(at);
                assert_eq!(value.copied(), flat[at as usize]);
                let same = flat[at as usize..end.min(64) as usize].iter();
                assert!(same.clone().all(|other| *other == flat[at as usize]), "{map:?} at {at}");
            }
            assert!(map.iter().map(|(range, _)| range).is_sorted_by(|a, b| a.end <= b.start));
        }
    }
}
