//! The rules by which QEMU refuses an image, or the use of an entry: their names, the entries that break one, and the
//! bytes that rules read. The drawer of each format has a file of rules. The rules judge bytes alone. They
//! share constants with the code that reads images, and nothing else, so that a check which that code lacks shows as a
//! disagreement. `tests/qemu/damaged/refusals.rs` and `tests/qemu/formats/` compare them with the installed qemu-img.
//!
//! If a format keeps a structure twice, readers may differ in the choice. Then an image breaks a rule only if QEMU
//! refuses it and no choice is left.

use std::ops::{ControlFlow, Range};

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{GRAIN_BYTES, Storage, each_data};
use crate::formats::anatomy::StructureField;
use crate::images::files::image::Image;

/// The name of a rule that an image breaks. Fingerprints contain it.
pub type BrokenRule = &'static str;

/// Declares rules, each as a constant with its name, and all of them in order.
macro_rules! rules {
    ($($(#[$about:meta])* $list:ident { $($rule:ident = $name:literal,)* })*) => {
        $(
            $(pub(super) const $rule: $crate::images::damage::BrokenRule = $name;)*
            $(#[$about])*
            pub(super) const $list: &[$crate::images::damage::BrokenRule] = &[$($rule),*];
        )*
    };
}
pub(in crate::images) use rules;

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
const RULE_PIECE_BYTES: usize = 512;

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

    /// Returns the number in a field of the structure at `start`, whose highest byte comes first.
    pub fn big_field(&self, start: u64, field: StructureField) -> u64 {
        self.big(start.saturating_add(field.at as u64), field.width_bytes as u8)
    }

    /// Returns the number in a field of the structure at `start`, whose lowest byte comes first.
    pub fn little_field(&self, start: u64, field: StructureField) -> u64 {
        self.little(start.saturating_add(field.at as u64), field.width_bytes as u8)
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

    /// Calls `take` with the bytes of the file in `range` that no hole holds, and with the offset of each piece.
    pub fn each_stored(&self, range: Range<u64>, mut take: impl FnMut(u64, &[u8])) {
        let mut scratch = [0; RULE_PIECE_BYTES];
        let range = HostOffset::new(range.start)..HostOffset::new(range.end);
        // Reads from memory do not fail.
        let range_end = range.end;
        let _ = each_data(self.0, range, &mut scratch, |data| {
            // Data may reach past the end of the range.
            let left = range_end.saturating_distance_from(data.offset);
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            take(data.offset.get(), data.bytes.get(..left).unwrap_or(data.bytes));
            Ok::<_, StorageError>(ControlFlow::Continue(()))
        });
    }

    /// Calls `take` with the index and the bytes of the entries of a table at `table`, without those in holes of the
    /// file, and without those that are `absent`.
    pub fn each_entry<const N: usize>(
        &self,
        (table, count): (u64, u64),
        absent: [u8; N],
        mut take: impl FnMut(u64, [u8; N]),
    ) {
        // Most entries of most tables are absent, and many are compared together.
        const TOGETHER: usize = 64;
        let end = table.saturating_add(count.saturating_mul(N as u64));
        self.each_stored(table..end, |at, bytes| {
            let first = at.saturating_sub(table) / N as u64;
            let left = usize::try_from(count.saturating_sub(first)).unwrap_or(usize::MAX);
            let entries = bytes.as_chunks().0;
            let entries = entries.get(..left).unwrap_or(entries);
            for (start, together) in (first..).step_by(TOGETHER).zip(entries.chunks(TOGETHER)) {
                // Without a branch for each entry, the comparison takes a few instructions for many of them.
                if together.iter().fold(false, |any, entry| any | (*entry != absent)) {
                    let entries = (start..).zip(together).filter(|(_, entry)| **entry != absent);
                    entries.for_each(|(index, entry)| take(index, *entry));
                }
            }
        });
    }

    /// Reports whether the `length` bytes at `table` and at `copy` are the same.
    pub fn is_copy(&self, table: u64, copy: u64, length: u64) -> bool {
        let mut at = 0;
        // Bytes in holes are zeros on both sides.
        while let Some(first) = self.first_stored(table, at..length, copy) {
            let pieces = [table, copy]
                .map(|start| -> [u8; RULE_PIECE_BYTES] { self.array(start.saturating_add(first)) });
            let count = (length - first).min(RULE_PIECE_BYTES as u64);
            let [one, other] = pieces.each_ref().map(|piece| piece.get(..count as usize));
            if one != other {
                return false;
            }
            at = first + count;
        }
        true
    }

    /// Returns the first offset in `range`, counted from `table` or from `copy`, whose byte no hole holds there.
    fn first_stored(&self, table: u64, range: Range<u64>, copy: u64) -> Option<u64> {
        let stored = [table, copy].map(|start| {
            let end = start.saturating_add(range.end);
            let stored = self.next_stored(start.saturating_add(range.start))?;
            (stored < end).then(|| stored - start)
        });
        stored.into_iter().flatten().min()
    }

    /// Returns the offset of the first byte from `from` on that no hole holds, or of one up to 15 bytes before it.
    pub fn next_stored(&self, from: u64) -> Option<u64> {
        let mut scratch = [0; GRAIN_BYTES as usize];
        let (from, end) = (HostOffset::new(from), HostOffset::new(u64::MAX));
        // Reads from memory do not fail.
        let data = self.0.next_data(from, end, &mut scratch).ok()?;
        data.map(|data| data.offset.get())
    }
}

/// The hole of a file that was found last. Most tables of a large directory lie in few holes.
#[derive(Default)]
pub struct LastHole(Range<u64>);

impl LastHole {
    /// Reports whether a hole of the file holds all of `range`.
    pub fn holds(&mut self, file: &Bytes<'_>, range: Range<u64>) -> bool {
        if range.start < self.0.start || self.0.end < range.end {
            self.0 = range.start..file.next_stored(range.start).unwrap_or(u64::MAX);
        }
        range.end <= self.0.end
    }
}
