//! The rules by which QEMU refuses an image, or the use of an entry: their names, the entries that break one, and the
//! bytes that rules read. The drawer of each format has a file of rules. The rules judge bytes alone. They
//! share constants with the code that reads images, and nothing else, so that a check which that code lacks shows as a
//! disagreement. `tests/qemu/damaged/refusals.rs` and `tests/qemu/formats/` compare them with the installed qemu-img.
//!
//! If a format keeps a structure twice, readers may differ in the choice. Then an image breaks a rule only if QEMU
//! refuses it and no choice is left.
//!
//! # Arithmetic
//! An offset that would pass 2^64 lies past the end of every file, where there are zeros.

use std::ops::{ControlFlow, Range};

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Storage, each_data};
use crate::images::files::image::Image;

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
pub fn if_no_reading_is_left(
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

/// The unit in which QEMU counts the length of a file.
const SECTOR_BYTES: u64 = 512;
/// The number of bytes that are read at once.
const RULE_PIECE_BYTES: usize = 4 << 10;

/// The bytes of an image.
#[derive(Clone, Copy)]
pub struct Bytes<'i>(&'i Image);

impl<'i> Bytes<'i> {
    /// Reads the bytes of `image`.
    pub fn new(image: &'i Image) -> Self {
        Self(image)
    }

    /// Returns the big-endian number of `width` bytes, 1 to 8, at `at`.
    pub fn big(&self, at: u64, width: u8) -> u64 {
        self.0.number(HostOffset::new(at), width)
    }

    /// Returns the little-endian number of `width` bytes, 1 to 8, at `at`.
    pub fn little(&self, at: u64, width: u8) -> u64 {
        self.big(at, width).swap_bytes() >> (64 - 8 * u32::from(width.clamp(1, 8)))
    }

    /// Returns `N` bytes at `at`.
    pub fn array<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(at, &mut bytes);
        bytes
    }

    /// Fills `into` with the bytes from `at` on.
    pub fn fill(&self, at: u64, into: &mut [u8]) {
        // Reads from memory do not fail.
        let _ = self.0.read_at(HostOffset::new(at), into);
    }

    /// Returns the length of the file in bytes.
    pub fn length(&self) -> u64 {
        self.0.length_bytes()
    }

    /// Returns the length of the file as QEMU sees it, in whole sectors.
    pub fn end_of_sectors(&self) -> u64 {
        self.length().checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX)
    }

    /// Calls `take` with `length` bytes from `at` on, in pieces.
    pub fn each_piece(&self, at: u64, length: u64, mut take: impl FnMut(&[u8])) {
        let mut piece = [0; RULE_PIECE_BYTES];
        let mut done = 0;
        while done < length {
            let count = (length - done).min(RULE_PIECE_BYTES as u64) as usize;
            self.fill(at.saturating_add(done), &mut piece[..count]);
            take(&piece[..count]);
            done += count as u64;
        }
    }

    /// Calls `take` with the index and the bytes of the entries of a table at `table`, without those in holes of the
    /// file.
    pub fn each_entry<const N: usize>(
        &self,
        table: u64,
        count: u64,
        mut take: impl FnMut(u64, [u8; N]),
    ) {
        let start = HostOffset::new(table);
        let end = start + count.saturating_mul(N as u64);
        let mut scratch = [0; RULE_PIECE_BYTES];
        // Reads from memory do not fail.
        let _ = each_data(self.0, start..end, &mut scratch, |data| {
            let first = data.offset.saturating_distance_from(start) / N as u64;
            for (index, entry) in (first..count).zip(data.bytes.as_chunks().0) {
                take(index, *entry);
            }
            Ok::<_, StorageError>(ControlFlow::Continue(()))
        });
    }
}
