//! The persistent dirty bitmaps of an image that an engine has written: each has ones for all ranges that requests have
//! changed while it was enabled, and keeps its older ones. A backup that trusts a zero loses what was written there. No
//! bit is set elsewhere, except in the clusters of a change.
//!
//! An engine that does not support bitmaps clears their autoclear bit, or marks them as in use: then readers ignore
//! their bits. Once it has carried out a request about bitmaps, it keeps them all.
//!
//! Does not check: all bits of a bitmap of more than 64 Ki bits in each run. Those at the edges of changes are read,
//! and 4,096 bits at the beginning of each of the first 64 clusters of bits that are not zeros. Nor does it check the
//! names of new bitmaps, and where an engine places bits. Bits of a bitmap in use have no meaning.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use crate::base::ranges::RangeMap;
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap::{BitmapEntry, bits_for, read_bits};
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::table::HostTable;
use crate::harness::files::chain::ChainFile;
use crate::harness::oracles::{OracleResult, Violation, disagreement, violation};

const ORACLE: &str = "bitmaps";

/// The bytes of a bitmap that are compared at once.
const BITS_PIECE_BYTES: u64 = 512;
/// The largest bitmap that is compared whole, in bytes.
const MAX_WHOLE_BITMAP_BYTES: u64 = 8 << 10;
/// The largest number of clusters of bits of a larger bitmap that are compared, in addition to those of changes.
const MAX_BIT_CLUSTERS: usize = 64;

/// A bitmap of a file, with its index in the directory.
#[derive(Clone, Copy, Debug)]
pub struct FoundBitmap<'f> {
    /// The file.
    pub file: &'f ChainFile,
    /// Its header.
    pub header: &'f Header,
    /// The index in the directory.
    pub index: u32,
    /// The entry of the directory.
    pub entry: BitmapEntry,
}

/// A bitmap as it must be.
#[derive(Debug)]
pub struct ExpectedBitmap<'e> {
    /// log2 of the guest bytes per bit.
    pub granularity_bits: u8,
    /// Changes of the disk set bits.
    pub is_enabled: bool,
    /// The bitmap before all requests; `None` if it had no ones, or was cleared.
    pub before: Option<FoundBitmap<'e>>,
    /// The smallest size of the disk since then. Older bits behind it are gone.
    pub kept_bytes: u64,
    /// The disk has changed its size since then: the bits from the end of its smallest size on may be any. QEMU sets
    /// none when a disk grows, and may set some when it writes zeros there.
    pub was_resized: bool,
    /// The guest ranges that have changed while the bitmap was enabled. Each begins before the end of the disk.
    pub changed: &'e RangeMap<()>,
}

/// The bits that a bitmap may have beside those that it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherBits {
    /// None but those in the clusters of changes.
    Zeros,
    /// Any: requests that are not flushed may have set them.
    Any,
}

/// Compares a bitmap that is not in use with the expected one.
pub fn check(found: &FoundBitmap, expected: &ExpectedBitmap, others: OtherBits) -> OracleResult {
    let size_bytes = found.header.virtual_size_bytes();
    if let Some(what) = found.entry.fault(&found.header.geometry, size_bytes) {
        let detail = || format!("bitmap {}: {what}", found.index);
        return violation(ORACLE, "a bitmap", ("readable", "an error"), detail);
    }
    let granularity_bits = found.entry.granularity_bits;
    let is_as_asked = granularity_bits == expected.granularity_bits
        && found.entry.is_auto() == expected.is_enabled;
    if !is_as_asked {
        return violation(ORACLE, "granularity and flags", ("as asked", "otherwise"), || {
            format!("bitmap {}: {:?}", found.index, found.entry)
        });
    }
    let mut pieces = pieces(found, expected).map_err(unreadable)?;
    let bits = bits_for(size_bytes, granularity_bits);
    pieces.retain(|piece| *piece < bits.div_ceil(8));
    let mut buffers = BitBuffers::default();
    for piece in pieces {
        buffers.fill(piece, found, expected).map_err(unreadable)?;
        buffers.compare(piece, found, others)?;
    }
    Ok(())
}

/// Returns the violation for a directory that does not have as many bitmaps as the requests have left.
pub fn wrong_count(expected: usize, actual: usize) -> Box<Violation> {
    let found = if actual < expected { "fewer" } else { "more" };
    let detail = format!("expected {expected} bitmaps, actual {actual}");
    disagreement(ORACLE, "directory", ("the bitmaps of the requests", found), detail)
}

/// Returns the violation for bitmaps that an engine has dropped, or not saved, after a request about bitmaps.
pub fn not_kept(actual: &'static str) -> OracleResult {
    violation(ORACLE, "bitmaps", ("kept", actual), String::new)
}

/// Returns the violation for structures that cannot be read.
pub fn unreadable(error: MapError) -> Box<Violation> {
    disagreement(ORACLE, "a bitmap", ("readable", "an error"), error.to_string())
}

/// Returns the offsets of the pieces to compare, in bytes of the bitmap.
fn pieces(found: &FoundBitmap, expected: &ExpectedBitmap) -> Result<BTreeSet<u64>, MapError> {
    let granularity_bits = u32::from(found.entry.granularity_bits);
    let bits = bits_for(found.header.virtual_size_bytes(), found.entry.granularity_bits);
    let bytes = bits.div_ceil(8);
    let mut pieces = BTreeSet::new();
    if bytes <= MAX_WHOLE_BITMAP_BYTES {
        pieces.extend((0..bytes).step_by(BITS_PIECE_BYTES as usize));
        return Ok(pieces);
    }
    let with_byte = |byte: u64| byte / BITS_PIECE_BYTES * BITS_PIECE_BYTES;
    for (range, ()) in expected.changed.iter() {
        for edge in [range.start, range.end] {
            let bit = edge >> granularity_bits;
            pieces.extend([bit.saturating_sub(1), bit].map(|bit| with_byte(bit / 8)));
        }
    }
    for bitmap in [Some(found), expected.before.as_ref()].into_iter().flatten() {
        let cluster_bytes = bitmap.header.geometry.cluster_size.bytes();
        let mut left = MAX_BIT_CLUSTERS;
        let mut scratch = [0; 4096];
        // A limit is no error.
        let _ =
            HostTable::bitmap(&bitmap.entry).each_entry(bitmap.file, &mut scratch, |entry| {
                pieces.insert(with_byte(entry.index.saturating_mul(cluster_bytes)));
                left -= 1;
                Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
    }
    Ok(pieces)
}

/// The bits of one piece of a bitmap.
#[derive(Debug, Default)]
struct BitBuffers {
    actual: Vec<u8>,
    /// The bits that were set before the requests, and must stay set.
    before: Vec<u8>,
    changed: Vec<u8>,
    /// The bits that may be set: the bits of all clusters with a change and, if the disk was resized, the bits past its
    /// smallest size.
    allowed: Vec<u8>,
}

impl BitBuffers {
    /// Fills the buffers for the piece that begins at byte `piece` of the bitmap.
    fn fill(
        &mut self,
        piece: u64,
        found: &FoundBitmap,
        expected: &ExpectedBitmap,
    ) -> Result<(), MapError> {
        let granularity_bits = found.entry.granularity_bits;
        let (size_bytes, cluster_size) =
            (found.header.virtual_size_bytes(), found.header.geometry.cluster_size);
        let length = BITS_PIECE_BYTES as usize;
        for buffer in [&mut self.actual, &mut self.before, &mut self.changed, &mut self.allowed] {
            buffer.clear();
            buffer.resize(length, 0);
        }
        read_bits(found.file, (found.index, &found.entry), cluster_size, piece, &mut self.actual)?;
        let kept = bits_for(expected.kept_bytes.min(size_bytes), granularity_bits);
        if let Some(before) = &expected.before {
            let bitmap = (before.index, &before.entry);
            read_bits(before.file, bitmap, cluster_size, piece, &mut self.before)?;
            clear_from(&mut self.before, kept.saturating_sub(piece * 8));
        }
        if expected.was_resized {
            let behind = expected.kept_bytes..u64::MAX;
            set(&mut self.allowed, piece, granularity_bits, &behind);
        }
        for (range, ()) in expected.changed.iter() {
            let range = range.start..range.end.min(size_bytes);
            let mask = cluster_size.mask();
            let whole = range.start & !mask..range.end.saturating_add(mask) & !mask;
            set(&mut self.changed, piece, granularity_bits, &range);
            set(&mut self.allowed, piece, granularity_bits, &whole);
        }
        // A table entry may set all bits of its cluster, even the bits past the end of the disk. These do not count.
        let end = bits_for(size_bytes, granularity_bits);
        clear_from(&mut self.actual, end.saturating_sub(piece * 8));
        Ok(())
    }

    fn compare(&self, piece: u64, found: &FoundBitmap, others: OtherBits) -> OracleResult {
        let Self { actual, before, changed, allowed } = self;
        for (at, byte) in actual.iter().enumerate() {
            let (before, changed) = (before[at], changed[at]);
            let (field, kinds, wrong) = if changed & !byte != 0 {
                ("the bits of a change", ("ones", "zeros"), changed & !byte)
            } else if before & !byte != 0 {
                ("bits from before", ("ones", "zeros"), before & !byte)
            } else if others == OtherBits::Zeros && byte & !(before | changed | allowed[at]) != 0 {
                ("other bits", ("zeros", "ones"), byte & !(before | changed | allowed[at]))
            } else {
                continue;
            };
            return violation(ORACLE, field, kinds, || {
                let bit = (piece + at as u64) * 8 + u64::from(wrong.trailing_zeros());
                let granularity_bits = found.entry.granularity_bits;
                let guest = bit << granularity_bits;
                format!(
                    "bitmap {}, bit {bit}: guest {guest:#x}+{:#x}",
                    found.index,
                    1u64 << granularity_bits
                )
            });
        }
        Ok(())
    }
}

/// Sets the bits of a guest range, which is not empty. `bytes` is the piece that begins at byte `piece` of the bitmap.
fn set(bytes: &mut [u8], piece: u64, granularity_bits: u8, guest: &Range<u64>) {
    let (first, last) =
        (guest.start >> granularity_bits, guest.end.saturating_sub(1) >> granularity_bits);
    for (nth, byte) in (piece..).zip(bytes) {
        let start = nth * 8;
        for bit in start.max(first)..start.saturating_add(8).min(last.saturating_add(1)) {
            *byte |= 1 << (bit - start);
        }
    }
}

fn clear_from(bytes: &mut [u8], bit: u64) {
    for (start, byte) in (0..).step_by(8).zip(bytes) {
        let kept = bit.saturating_sub(start).min(8);
        *byte &= ((1u16 << kept) - 1) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_ranges_are_set_from_the_lowest_on() {
        let mut bytes = [0; 2];
        set(&mut bytes, 1, 9, &(9 << 9..(11 << 9) + 1));
        assert_eq!(bytes, [0b1110, 0]);
        set(&mut bytes, 1, 9, &(15 << 9..100 << 9));
        assert_eq!(bytes, [0b1000_1110, 0xff]);
    }

    #[test]
    fn bits_behind_the_end_are_cleared() {
        let mut bytes = [0xff; 3];
        clear_from(&mut bytes, 11);
        assert_eq!(bytes, [0xff, 0b111, 0]);
        clear_from(&mut bytes, 0);
        assert_eq!(bytes, [0; 3]);
    }
}
