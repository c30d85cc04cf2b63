//! The parts of a file that its file system stores. All other parts are holes.

use std::ops::Range;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Stored;

/// The parts of a file that are stored, with or without content. By default, a file in memory has no holes.
#[derive(Clone, Debug, Default)]
pub struct StoredParts {
    has_holes: bool,
    /// The parts, sorted and not adjacent once sealed.
    parts: Vec<Range<u64>>,
}

impl StoredParts {
    /// Removes all parts: the file has no holes.
    pub(in crate::images) fn clear(&mut self) {
        self.has_holes = false;
        self.parts.clear();
    }

    /// Makes the whole file a hole, except for the parts that [`StoredParts::add`] adds.
    pub fn begin(&mut self) {
        self.has_holes = true;
    }

    /// Adds a part, if the file has holes.
    pub fn add(&mut self, offset: HostOffset, length_bytes: u64) {
        if self.has_holes && length_bytes > 0 {
            self.parts.push(offset.get()..offset.get().saturating_add(length_bytes));
        }
    }

    /// Ends the additions.
    pub(in crate::images) fn seal(&mut self) {
        self.parts.sort_unstable_by_key(|part| part.start);
        self.parts.dedup_by(|next, part| {
            let continues = next.start <= part.end;
            if continues {
                part.end = part.end.max(next.end);
            }
            continues
        });
    }

    /// Returns the stored parts before `length_bytes`, in order; `None` if the file has no holes.
    pub fn before(&self, length_bytes: u64) -> Option<impl Iterator<Item = Range<u64>> + '_> {
        let before = move |part: &Range<u64>| part.start..part.end.min(length_bytes);
        let parts = self.parts.iter().map(before).filter(|part| !part.is_empty());
        self.has_holes.then_some(parts)
    }

    /// Returns the answer of a file of `length_bytes`; see [`Storage::stored`](crate::disk::storage::Storage::stored).
    pub(in crate::images) fn at(
        &self,
        from: HostOffset,
        until: HostOffset,
        length_bytes: u64,
    ) -> Stored {
        let at = from.get();
        let answer =
            |stored, end: u64| Stored { stored, end: HostOffset::new(end.min(until.get())) };
        let next = self.parts.partition_point(|part| part.end <= at);
        match self.parts.get(next).filter(|part| part.start < length_bytes) {
            _ if at >= length_bytes => answer(false, u64::MAX),
            _ if !self.has_holes => answer(true, length_bytes),
            Some(part) if part.start <= at => answer(true, part.end.min(length_bytes)),
            Some(part) => answer(false, part.start),
            None => answer(false, u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the answers for a file of `length_bytes` up to `until`, as flags and ends.
    fn answers(parts: &StoredParts, length_bytes: u64, until: u64) -> Vec<(bool, u64)> {
        let (mut answers, mut at) = (Vec::new(), 0);
        while at < until {
            let answer = parts.at(HostOffset::new(at), HostOffset::new(until), length_bytes);
            at = answer.end.get();
            answers.push((answer.stored, at));
        }
        answers
    }

    #[test]
    fn a_file_without_holes_is_stored_up_to_its_end() {
        let mut parts = StoredParts::default();
        parts.add(HostOffset::new(3), 4);
        assert_eq!(answers(&parts, 10, 20), [(true, 10), (false, 20)]);
        assert!(parts.before(10).is_none());
    }

    #[test]
    fn everything_but_the_parts_is_a_hole() {
        let mut parts = StoredParts::default();
        parts.begin();
        assert_eq!(answers(&parts, 10, 20), [(false, 20)]);
        for (offset, length) in [(12, 4), (2, 3), (5, 1), (3, 1), (30, 9), (8, 0)] {
            parts.add(HostOffset::new(offset), length);
        }
        parts.seal();
        let whole = [(false, 2), (true, 6), (false, 12), (true, 16), (false, 20)];
        assert_eq!(answers(&parts, 40, 20), whole);
        let cut = [(false, 2), (true, 6), (false, 12), (true, 14), (false, 20)];
        assert_eq!(answers(&parts, 14, 20), cut);
        assert!(parts.before(14).unwrap().eq([2..6, 12..14]));
        parts.clear();
        assert_eq!(answers(&parts, 10, 10), [(true, 10)]);
    }
}
