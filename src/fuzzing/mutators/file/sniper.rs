//! Changes numbers of a file that the engine under test has read in a run of the file: mostly fields and entries of the
//! structures, otherwise any bytes.
//!
//! # Arithmetic
//! A file of any content may name any offset. A range ends at the end of the file.

use std::ops::Range;

use smallvec::SmallVec;

use crate::formats::anatomy::{Anatomy, ByteOrder, Element, Part};
use crate::fuzzing::mutators::file_context::FileContext;
use crate::harness::cases::file_input;
use crate::harness::cases::tracer::AccessedRange;

use super::word;

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

pub(in crate::fuzzing::mutators) fn change(file: &mut [u8], context: &mut FileContext) -> bool {
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
        has_changed |= put(file, &target, context);
    }
    has_changed
}

/// Returns the accessed ranges of the file, each once and in order. The files beside a VMDK descriptor have the same
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
    let format = file_input::format_of_any(file);
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
fn put(file: &mut [u8], target: &Target, context: &mut FileContext) -> bool {
    let Target { bytes, is_big_endian, other } = target;
    let number = |range: &Range<usize>, file: &[u8]| {
        file.get(range.clone()).map(|bytes| word::number(bytes, *is_big_endian))
    };
    let Some(before) = number(bytes, file) else { return false };
    let other = other.as_ref().and_then(|other| number(other, file));
    let after = other.unwrap_or_else(|| word::changed(before, &mut context.entropy));
    if let Some(place) = file.get_mut(bytes.clone()) {
        word::put(place, after, *is_big_endian);
    }
    number(bytes, file) != Some(before)
}
