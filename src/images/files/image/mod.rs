//! The bytes of one image, stored sparsely: written bytes are kept, everything else is a hole. A 2 MiB cluster or a
//! far host offset costs only the bytes written there. All buffers are reused from image to image.

mod stored_parts;
#[cfg(test)]
mod tests;

pub use stored_parts::StoredParts;

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage;
use crate::disk::storage::{Data, GRAIN_BYTES, Storage, Stored};

/// A sparse image in memory.
#[derive(Clone, Debug, Default)]
pub struct Image {
    length_bytes: u64,
    /// Sorted by offset and disjoint once sealed.
    segments: Vec<Segment>,
    /// The contents of the segments that own them.
    bytes: Vec<u8>,
    /// The contents of the segments that refer to static data.
    referred: Vec<Referred>,
    /// The parts that the file stores, if it has holes.
    pub(crate) stored: StoredParts,
    /// Guesses of where look-ups end, by offset. Each use checks them, so they may stem from another image.
    guesses: Guesses,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: u64,
    /// The start of the content in [`Image::bytes`]. If the bit [`REFERRED`] is set: the content's index in
    /// [`Image::referred`].
    position: u32,
    length: u32,
}

/// A content that consists of static data, and of copied bytes before and behind them.
#[derive(Clone, Copy, Debug)]
struct Referred {
    /// The start in [`Image::bytes`] of the bytes before the static data. The bytes behind them follow there.
    position: u32,
    /// The number of bytes before the static data.
    head_bytes: u32,
    rest: &'static [u8],
}

/// The mark of a position that is an index into [`Image::referred`]. [`Image::bytes`] never grows so long (`limits`).
const REFERRED: u32 = 1 << 31;
/// The shortest data that an image refers to. Shorter data are copied, because another segment costs as much.
const MIN_REFERRED_BYTES: usize = 256;

impl Segment {
    #[inline]
    fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }

    /// Reports whether the segment holds all of `length_bytes` from `start` on.
    #[inline]
    fn contains(&self, start: u64, length_bytes: usize) -> bool {
        self.offset <= start && start.saturating_add(length_bytes as u64) <= self.end()
    }
}

impl Image {
    /// Removes everything, and keeps the buffers.
    pub fn clear(&mut self) {
        self.length_bytes = 0;
        self.segments.clear();
        self.bytes.clear();
        self.referred.clear();
        self.stored.clear();
    }

    /// Returns `length_bytes` zeros at `offset` for the caller to fill. Writes must not overlap, except that the same
    /// range may be written again with the same bytes.
    #[inline]
    pub fn place(&mut self, offset: HostOffset, length_bytes: usize) -> &mut [u8] {
        let position = self.bytes.len();
        self.note(offset, self.next_position(), length_bytes);
        self.bytes.resize(position + length_bytes, 0);
        &mut self.bytes[position..]
    }

    /// Writes `bytes` at `offset`; see [`Image::place`].
    #[inline]
    pub fn write(&mut self, offset: HostOffset, bytes: &[u8]) {
        self.note(offset, self.next_position(), bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes `parts`, then `rest`, one after the other from `offset` on; see [`Image::write_around`].
    #[inline]
    pub fn write_parts(&mut self, offset: HostOffset, parts: &[&[u8]], rest: &'static [u8]) {
        self.write_around(offset, parts, rest, &[]);
    }

    /// Writes `parts`, then `rest`, then `tail`, one after the other from `offset` on; see [`Image::place`]. A long
    /// `rest` is referred to instead of copied. Only the same bytes may be written there again, in the same parts.
    #[inline]
    pub fn write_around(
        &mut self,
        offset: HostOffset,
        parts: &[&[u8]],
        rest: &'static [u8],
        tail: &[u8],
    ) {
        let position = self.next_position();
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let head_bytes = self.next_position() - position;
        let is_referred = rest.len() >= MIN_REFERRED_BYTES;
        if !is_referred {
            self.bytes.extend_from_slice(rest);
        }
        self.bytes.extend_from_slice(tail);
        let length = head_bytes as usize + rest.len() + tail.len();
        match is_referred {
            true => {
                // There are at most as many references as segments.
                let index = REFERRED | u32::try_from(self.referred.len()).unwrap_or(u32::MAX);
                self.referred.push(Referred { position, head_bytes, rest });
                self.note(offset, index, length);
            }
            false => self.note(offset, position, length),
        }
    }

    /// Returns the position in `bytes` of the next copy.
    #[inline]
    fn next_position(&self) -> u32 {
        // An image holds at most some MiB (`limits`), so positions fit.
        u32::try_from(self.bytes.len()).unwrap_or(u32::MAX)
    }

    /// Adds a segment, unless it is empty.
    #[inline]
    fn note(&mut self, offset: HostOffset, position: u32, length_bytes: usize) {
        if length_bytes == 0 {
            return;
        }
        let length = u32::try_from(length_bytes).unwrap_or(u32::MAX);
        self.segments.push(Segment { offset: offset.get(), position, length });
    }

    /// Removes the written bytes from `length_bytes` on.
    pub fn truncate(&mut self, length_bytes: u64) {
        self.segments.retain_mut(|segment| {
            let left = length_bytes.saturating_sub(segment.offset);
            segment.length = segment.length.min(u32::try_from(left).unwrap_or(u32::MAX));
            segment.length > 0
        });
    }

    /// Ends the writing; from now on the image can be read. The file has `length_bytes`, or more if bytes were
    /// written after that.
    pub fn seal(&mut self, length_bytes: u64) {
        if !self.segments.is_sorted_by_key(|segment| segment.offset) {
            // Segments with the same offset have the same bytes: either may stay.
            self.segments.sort_unstable_by_key(|segment| segment.offset);
        }
        self.segments.dedup_by_key(|segment| segment.offset);
        debug_assert!(
            self.segments.windows(2).all(|pair| pair[0].end() <= pair[1].offset),
            "structures overlap in the image"
        );
        self.length_bytes = length_bytes.max(self.segments.last().map_or(0, Segment::end));
        self.stored.seal();
        self.guess_edges();
    }

    /// Notes the guesses for both edges of each segment, where most readers begin. That costs less than their searches.
    fn guess_edges(&self) {
        for (index, segment) in (0..).zip(&self.segments) {
            for edge in [segment.offset, segment.end().saturating_sub(1)] {
                self.guesses.slot(edge).store(index, Relaxed);
            }
        }
    }

    /// Overwrites bytes after the writing has ended. Holes in the range become written. The file does not grow.
    pub fn overwrite(&mut self, offset: HostOffset, bytes: &[u8]) {
        let length = self.length_bytes.saturating_sub(offset.get());
        let there = usize::try_from(length).unwrap_or(usize::MAX).min(bytes.len());
        let mut at = offset.get();
        let mut left = &bytes[..there];
        while !left.is_empty() {
            let index = self.first_past(at);
            let next = self.segments.get(index).copied();
            let until = match next {
                Some(segment) if segment.offset <= at => segment.end(),
                Some(segment) => segment.offset,
                None => u64::MAX,
            };
            let count = usize::try_from(until - at).unwrap_or(usize::MAX).min(left.len());
            let (piece, rest) = left.split_at(count);
            match next {
                Some(segment) if segment.offset <= at => {
                    let position = self.own(index) + (at - segment.offset) as usize;
                    self.bytes[position..position + count].copy_from_slice(piece);
                }
                _ => {
                    let position = self.next_position();
                    self.bytes.extend_from_slice(piece);
                    let length = count as u32;
                    self.segments.insert(index, Segment { offset: at, position, length });
                }
            }
            at += count as u64;
            left = rest;
        }
    }

    /// Cuts the file, or appends a hole, after the writing has ended.
    pub fn set_length(&mut self, length_bytes: u64) {
        if length_bytes < self.length_bytes {
            self.truncate(length_bytes);
        }
        self.length_bytes = length_bytes;
    }

    /// Cuts the file to `length_bytes` after the writing has ended.
    pub fn cut(&mut self, length_bytes: u64) {
        self.truncate(length_bytes);
        self.length_bytes = self.length_bytes.min(length_bytes);
    }

    /// Returns the big-endian number of `width_bytes`, 1 to 8, at `at`. Bytes past the end are zeros.
    pub fn number(&self, at: HostOffset, width_bytes: u8) -> u64 {
        let mut bytes = [0; 8];
        let width = usize::from(width_bytes).min(8);
        // Reads from memory do not fail.
        let _ = self.read_at(at, &mut bytes[8 - width..]);
        u64::from_be_bytes(bytes)
    }

    /// Returns the number of bytes that the image holds itself, without the static data that it refers to.
    pub fn owned_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the written data in the order of the file.
    pub fn written(&self) -> impl Iterator<Item = Data<'_>> {
        self.segments.iter().flat_map(move |segment| {
            let mut at = segment.offset;
            std::iter::from_fn(move || {
                let bytes = (at < segment.end()).then(|| self.content(segment, at))?;
                let offset = HostOffset::new(at);
                at += bytes.len() as u64;
                Some(Data { offset, bytes })
            })
        })
    }

    /// Returns bytes of a segment from the offset `at` on, which lies in it: as many as lie in one piece in memory.
    #[inline(always)]
    fn content(&self, segment: &Segment, at: u64) -> &[u8] {
        let inside = (at - segment.offset) as usize;
        let left = segment.length as usize - inside;
        match segment.position & REFERRED {
            0 => &self.bytes[segment.position as usize + inside..][..left],
            _ => {
                let content = self.referred_content(segment.position ^ REFERRED, inside);
                &content[..content.len().min(left)]
            }
        }
    }

    fn referred_content(&self, index: u32, inside: usize) -> &[u8] {
        let Referred { position, head_bytes, rest } = self.referred[index as usize];
        let (position, head) = (position as usize, head_bytes as usize);
        if inside < head {
            &self.bytes[position + inside..position + head]
        } else if inside < head + rest.len() {
            &rest[inside - head..]
        } else {
            // The bytes of other segments may follow. The caller cuts the slice at the length of this segment.
            &self.bytes[position + inside - rest.len()..]
        }
    }

    /// Returns the position of a segment's content in [`Image::bytes`]. If the image only refers to the content, this
    /// copies it there first.
    fn own(&mut self, index: usize) -> usize {
        let position = self.next_position();
        let segment = self.segments[index];
        if segment.position & REFERRED == 0 {
            return segment.position as usize;
        }
        let (start, length) = (self.bytes.len(), segment.length as usize);
        let Referred { position: from, head_bytes, rest } =
            self.referred[(segment.position ^ REFERRED) as usize];
        let (head, tail) = (from as usize, (from + head_bytes) as usize);
        self.bytes.extend_from_within(head..tail);
        self.bytes.extend_from_slice(rest);
        // The segment may end inside the static data.
        self.bytes.truncate(start + length);
        let tail_bytes = start + length - self.bytes.len();
        self.bytes.extend_from_within(tail..tail + tail_bytes);
        self.segments[index].position = position;
        start
    }

    /// Fills `into` with the bytes from `start` on: those of any number of segments from `first` on, and the holes
    /// between them.
    #[inline(never)]
    fn read_pieces(&self, first: usize, start: u64, into: &mut [u8]) {
        let end = start.saturating_add(into.len() as u64);
        let mut filled = 0;
        for segment in &self.segments[first..] {
            if segment.offset >= end {
                break;
            }
            // The difference is at most the length of `into`.
            let target = segment.offset.saturating_sub(start) as usize;
            into[filled..target].fill(0);
            filled = target;
            let last = segment.end().min(end);
            let mut at = segment.offset.max(start);
            while at < last {
                let bytes = self.content(segment, at);
                let length = bytes.len().min(into.len() - filled);
                into[filled..filled + length].copy_from_slice(&bytes[..length]);
                (filled, at) = (filled + length, at + length as u64);
            }
        }
        into[filled..].fill(0);
    }

    /// Returns the index of the first segment that ends past `offset`.
    #[inline]
    fn first_past(&self, offset: u64) -> usize {
        let guess = self.guesses.slot(offset).load(Relaxed) as usize;
        match self.segments.get(guess) {
            Some(segment)
                if segment.end() > offset
                    && (segment.offset <= offset
                        || guess == 0
                        || self.segments[guess - 1].end() <= offset) =>
            {
                guess
            }
            _ => self.search(offset),
        }
    }

    /// Searches all segments for the index of [`Self::first_past`], and stores it as the next guess.
    #[inline(never)]
    fn search(&self, offset: u64) -> usize {
        let index = self.segments.partition_point(|segment| segment.end() <= offset);
        self.guesses.slot(offset).store(u32::try_from(index).unwrap_or(0), Relaxed);
        index
    }
}

/// Copies a slice onto one of the same length. Nearly all are table entries and stamps, for which a copy of a known
/// length is one or two moves.
#[inline]
fn copy_short(from: &[u8], to: &mut [u8]) {
    match to.len() {
        8 => to[..8].copy_from_slice(&from[..8]),
        16 => to[..16].copy_from_slice(&from[..16]),
        _ => to.copy_from_slice(from),
    }
}

impl Storage for Image {
    fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    #[inline]
    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        let start = offset.get();
        let first = self.first_past(start);
        match self.segments.get(first) {
            Some(segment) if segment.contains(start, into.len()) => {
                match self.content(segment, start).get(..into.len()) {
                    Some(bytes) => copy_short(bytes, into),
                    None => self.read_pieces(first, start, into),
                }
            }
            _ => self.read_pieces(first, start, into),
        }
        Ok(())
    }

    fn stored(&self, from: HostOffset, until: HostOffset) -> Result<Stored, StorageError> {
        Ok(self.stored.at(from, until, self.length_bytes))
    }

    #[inline]
    fn next_data<'a>(
        &'a self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        let Some(segment) = self.segments.get(self.first_past(from.get())) else {
            return Ok(None);
        };
        if segment.offset >= until.get() {
            return Ok(None);
        }
        let first = segment.offset.max(from.get());
        let content = self.content(segment, first);
        let length = (until.get() - first).min(content.len() as u64) / GRAIN_BYTES * GRAIN_BYTES;
        if (first - from.get()).is_multiple_of(GRAIN_BYTES) && length > 0 {
            let bytes = &content[..length as usize];
            return Ok(Some(Data { offset: HostOffset::new(first), bytes }));
        }
        storage::read_widened(self, from, HostOffset::new(first), until, scratch)
    }
}

/// Guesses for look-ups. Readers read the same table entries again and again.
#[derive(Debug)]
pub(in crate::images) struct Guesses([AtomicU32; Guesses::SLOTS]);

impl Guesses {
    const SLOTS: usize = 256;

    /// Returns the guess for `offset`. Offsets within 64 bytes share one.
    #[inline]
    pub(in crate::images) fn slot(&self, offset: u64) -> &AtomicU32 {
        // Fibonacci hashing; the upper eight bits are below SLOTS.
        &self.0[((offset >> 6).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize]
    }
}

impl Default for Guesses {
    fn default() -> Self {
        Self([const { AtomicU32::new(0) }; Self::SLOTS])
    }
}

impl Clone for Guesses {
    fn clone(&self) -> Self {
        let guesses = self.0.each_ref().map(|guess| AtomicU32::new(guess.load(Relaxed)));
        Self(guesses)
    }
}
