//! Mutations of files of any content. Most of them know no format, as libFuzzer's own mutations. One aims at the
//! numbers that the engine under test has read.

use std::ops::Range;

use smallvec::SmallVec;

use crate::formats::anatomy::{Anatomy, ByteOrder, Element, Part};
use crate::harness::cases::tracer::{AccessedRange, TraceRun};
use crate::harness::files;
use crate::images::content::entropy::Entropy;

/// log2 of the length of the longest range.
const MAX_RANGE_BITS: u64 = 16;
const FIRST_SECTOR_BYTES: usize = 512;

/// The parameters of a mutation, except the file.
pub struct FileContext<'c> {
    /// The random choices.
    pub entropy: Entropy,
    /// A file from which the child may take bytes.
    pub other: &'c [u8],
    /// The highest number of bytes of the child, at least that of its parent.
    pub max_bytes: usize,
    /// The file is unchanged since a run that found nothing. Only then may a mutation run it again.
    pub sound: bool,
    /// Runs that file again with the engine under test.
    pub trace: &'c mut TraceRun<'c>,
}

impl FileContext<'_> {
    /// Returns a random index into a list of `length` elements; 0 if the list is empty.
    fn index(&mut self, length: usize) -> usize {
        self.entropy.below(length as u64) as usize
    }

    /// Returns a random range of a file of `length_bytes`: of 1 to 64 KiB, mostly small, and empty only if the file is.
    /// Long ranges begin at a sector.
    fn range(&mut self, length_bytes: usize) -> Range<usize> {
        let wanted = 1 << self.entropy.below(MAX_RANGE_BITS + 1);
        let start = self.index(length_bytes);
        let start =
            if wanted < FIRST_SECTOR_BYTES { start } else { start & !(FIRST_SECTOR_BYTES - 1) };
        start..(start + wanted).min(length_bytes)
    }

    /// Returns a random byte of a file that is not empty. Half of them lie in its first sector, where headers are.
    fn place(&mut self, length_bytes: usize) -> usize {
        let first = if self.entropy.one_in(2) { FIRST_SECTOR_BYTES } else { length_bytes };
        self.index(first.min(length_bytes))
    }
}

/// Changes a few bytes of a file.
pub(super) fn bytes(file: &mut [u8], context: &mut FileContext) -> bool {
    if file.is_empty() {
        return false;
    }
    let mut has_changed = false;
    for _ in 0..1 + context.index(4) {
        let at = context.place(file.len());
        let byte = match context.entropy.below(3) {
            0 => file[at] ^ 1 << context.entropy.below(8),
            1 => file[context.index(file.len())],
            _ => context.entropy.next_u64() as u8,
        };
        has_changed |= file[at] != byte;
        file[at] = byte;
    }
    has_changed
}

/// The units to which lengths are rounded: a byte, a word, a sector, a page, the usual cluster of qcow2.
const UNITS_BYTES: [usize; 5] = [1, 8, 512, 4096, 65536];

/// Cuts a file, or appends zeros or bytes of another file.
pub(super) fn length(file: &mut Vec<u8>, context: &mut FileContext) -> bool {
    let before = file.len();
    let unit_bytes = UNITS_BYTES[context.index(UNITS_BYTES.len())];
    if context.entropy.one_in(2) {
        let length = 1 + context.index(before);
        // A file that loses all its bytes says nothing.
        file.truncate(length.next_multiple_of(unit_bytes).min(before));
    } else {
        let grown = (before + 1 + context.index(2 * unit_bytes)).next_multiple_of(unit_bytes);
        let length = grown.min(context.max_bytes).max(before);
        if context.entropy.one_in(2) {
            let range = context.range(context.other.len());
            let room = length - before;
            file.extend(context.other[range].iter().take(room));
        }
        file.resize(length, 0);
    }
    file.len() != before
}

/// Takes a range of another file to the same place of a file.
pub(super) fn mix(file: &mut Vec<u8>, context: &mut FileContext) -> bool {
    let range = context.range(context.other.len().min(context.max_bytes));
    let taken = &context.other[range.clone()];
    if file.get(range.clone()) == Some(taken) {
        return false;
    }
    file.resize(file.len().max(range.end), 0);
    file[range].copy_from_slice(taken);
    true
}

/// Copies a range of a file over another place or between two bytes, removes it, or fills it with zeros.
pub(super) fn range(file: &mut Vec<u8>, context: &mut FileContext) -> bool {
    let range = context.range(file.len());
    if range.is_empty() {
        return false;
    }
    let length = range.len();
    match context.entropy.below(4) {
        0 => {
            // The place is as well aligned as the range.
            let unit_bytes = 1 << length.trailing_zeros();
            let to = context.index(file.len() - length + 1) & !(unit_bytes - 1);
            let has_changed = file[range.clone()] != file[to..to + length];
            file.copy_within(range, to);
            has_changed
        }
        1 => {
            if file.len() + length > context.max_bytes {
                return false;
            }
            let before = file.clone();
            let copy = file[range.clone()].to_vec();
            file.splice(range.start..range.start, copy);
            *file != before
        }
        2 => {
            if length == file.len() {
                return false;
            }
            file.drain(range);
            true
        }
        _ => {
            let has_changed = file[range.clone()].iter().any(|byte| *byte != 0);
            file[range].fill(0);
            has_changed
        }
    }
}

/// The number of places that are looked at for a number other than zero: most words of an image are zero.
const LOOKS: usize = 16;
const WIDTHS_BYTES: [usize; 4] = [1, 2, 4, 8];

/// Changes a number of a file: a field or an entry, in either order of bytes.
pub(super) fn word(file: &mut [u8], context: &mut FileContext) -> bool {
    let width = WIDTHS_BYTES[context.index(WIDTHS_BYTES.len())];
    let Some(at) = place(file, width, context) else { return false };
    let is_big_endian = context.entropy.one_in(2);
    let before = number(&file[at..at + width], is_big_endian);
    let after = match context.entropy.one_in(6) {
        false => changed(before, &mut context.entropy),
        true => match place(file, width, context) {
            Some(other) => number(&file[other..other + width], is_big_endian),
            None => return false,
        },
    };
    put(&mut file[at..at + width], after, is_big_endian);
    number(&file[at..at + width], is_big_endian) != before
}

/// Returns another number: a neighbour, one that differs in a bit or by a power of two, or a boundary.
fn changed(before: u64, entropy: &mut Entropy) -> u64 {
    match entropy.below(5) {
        0 => before.wrapping_add(1 + entropy.below(16)),
        1 => before.wrapping_sub(1 + entropy.below(16)),
        2 => before.wrapping_add(1 << entropy.below(64)),
        3 => before ^ 1 << entropy.below(64),
        _ => match entropy.below(3) {
            0 => 0,
            1 => u64::MAX,
            _ => (1 << entropy.below(64)) - entropy.below(2),
        },
    }
}

/// Returns the place of an aligned number, which is not zero if one of some places has such a one.
fn place(file: &[u8], width: usize, context: &mut FileContext) -> Option<usize> {
    let last = file.len().checked_sub(width)?;
    let mut at = 0;
    for _ in 0..LOOKS {
        at = context.place(last + 1) & !(width - 1);
        if file[at..at + width].iter().any(|byte| *byte != 0) {
            break;
        }
    }
    Some(at)
}

/// Returns the number in up to eight bytes.
fn number(bytes: &[u8], is_big_endian: bool) -> u64 {
    let join = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    match is_big_endian {
        true => bytes.iter().fold(0, join),
        false => bytes.iter().rev().fold(0, join),
    }
}

/// Writes the lowest bytes of a number.
fn put(bytes: &mut [u8], number: u64, is_big_endian: bool) {
    let lowest = number.to_le_bytes();
    let bytes = bytes.iter_mut();
    match is_big_endian {
        true => bytes.rev().zip(lowest).for_each(|(byte, value)| *byte = value),
        false => bytes.zip(lowest).for_each(|(byte, value)| *byte = value),
    }
}

/// One number of this many is any bytes that the engine has read.
const ANY_ONE_IN: u64 = 4;
/// One change of this many takes the number of another element of the same part.
const OTHERS_ONE_IN: u64 = 6;
/// log2 of the length of the longest number.
const MAX_WIDTH_BITS: usize = 3;

/// A number of the file.
struct Target {
    bytes: Range<usize>,
    is_big_endian: bool,
    /// The bytes of another number of the same kind.
    other: Option<Range<usize>>,
}

/// Changes numbers of a file that the engine under test has read in a run of the file: mostly fields and entries of the
/// structures, otherwise any bytes.
pub(super) fn accessed(file: &mut [u8], context: &mut FileContext) -> bool {
    if !context.sound {
        return false;
    }
    let Some(accessed) = (context.trace)() else { return false };
    let ranges = ranges(&accessed, file.len());
    let elements = elements(file, &ranges);
    let mut has_changed = false;
    for _ in 0..1 + context.index(2) {
        let is_any = elements.is_empty() || context.entropy.one_in(ANY_ONE_IN);
        let target = if is_any { any(&ranges, context) } else { aimed(&elements, context) };
        let Some(target) = target else { break };
        has_changed |= write(file, &target, context);
    }
    has_changed
}

/// Returns the accessed ranges of the file, each once and in order. The files beside a descriptor have the same
/// bytes.
fn ranges(accessed: &[AccessedRange], length: usize) -> Vec<Range<usize>> {
    let held = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(length);
    let ranges = accessed.iter().map(|it| held(it.bytes.start)..held(it.bytes.end));
    let mut ranges: Vec<_> = ranges.filter(|range| !range.is_empty()).collect();
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    ranges.dedup();
    ranges
}

/// Returns the bytes of the elements of the file that lie in these ranges, part by part.
fn elements(file: &[u8], ranges: &[Range<usize>]) -> Vec<(Part, Range<usize>, ByteOrder)> {
    let format = files::format_of_any(file);
    let mut anatomy = Anatomy::default();
    // The structures of a malformed file are those before the damage.
    let _ = anatomy.read(format, file);
    let bytes = |element: &Element| {
        let start = usize::try_from(element.at.get()).ok()?;
        let end = start.checked_add(usize::from(element.width_bytes))?;
        (end <= file.len()).then_some(start..end)
    };
    let is_read = |bytes: &Range<usize>| {
        ranges.iter().any(|range| range.start <= bytes.start && bytes.end <= range.end)
    };
    let elements = anatomy.elements().filter_map(|element| {
        let bytes = bytes(element).filter(is_read)?;
        Some((element.part, bytes, element.order))
    });
    elements.collect()
}

/// Chooses an element. Each part is equally likely, however many of its elements are there.
fn aimed(
    elements: &[(Part, Range<usize>, ByteOrder)],
    context: &mut FileContext,
) -> Option<Target> {
    let parts: SmallVec<[_; Part::ALL.len()]> =
        elements.chunk_by(|(one, ..), (next, ..)| one == next).collect();
    let part: &[(Part, Range<usize>, ByteOrder)] = parts.get(context.index(parts.len()))?;
    let (_, bytes, order) = part.get(context.index(part.len()))?;
    let other = match context.entropy.one_in(OTHERS_ONE_IN) {
        true => part.get(context.index(part.len())).map(|(_, other, _)| other.clone()),
        false => None,
    };
    Some(Target { bytes: bytes.clone(), is_big_endian: *order == ByteOrder::BigEndian, other })
}

/// Chooses any number in a range, in either order of bytes. Each range is equally likely: most structures are short.
fn any(ranges: &[Range<usize>], context: &mut FileContext) -> Option<Target> {
    let range = ranges.get(context.index(ranges.len()))?;
    let longest = range.len().checked_ilog2()?.min(MAX_WIDTH_BITS as u32) as usize;
    let width = 1usize << context.index(longest + 1);
    let first = context.index(range.len() / width).checked_mul(width)?;
    let start = range.start.checked_add(first)?;
    let bytes = start..start.checked_add(width)?;
    let is_big_endian = context.entropy.one_in(2);
    Some(Target { bytes, is_big_endian, other: None })
}

/// Writes another number in place of `target`. Returns false if the bytes stay as they are.
fn write(file: &mut [u8], target: &Target, context: &mut FileContext) -> bool {
    let Target { bytes, is_big_endian, other } = target;
    let number = |range: &Range<usize>, file: &[u8]| {
        file.get(range.clone()).map(|bytes| number(bytes, *is_big_endian))
    };
    let Some(before) = number(bytes, file) else { return false };
    let other = other.as_ref().and_then(|other| number(other, file));
    let after = other.unwrap_or_else(|| changed(before, &mut context.entropy));
    if let Some(place) = file.get_mut(bytes.clone()) {
        put(place, after, *is_big_endian);
    }
    number(bytes, file) != Some(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_an_order() {
        let mut bytes = [0; 4];
        put(&mut bytes, 0x0102_0304, true);
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert_eq!((number(&bytes, true), number(&bytes, false)), (0x0102_0304, 0x0403_0201));
        put(&mut bytes, 0x0102_0304, false);
        assert_eq!(bytes, [4, 3, 2, 1]);
    }
}
