//! Compares the ranges that a map calls zeros with the bytes that a guest must read.

use std::ops::Range;
use std::path::Path;

use crate::differential::divergence::{Divergence, DivergenceKind};
use crate::recipes::RecipeError;

use crate::recipes::guest::{Expected, GUEST_PIECE_BYTES, GuestContent, GuestData};

/// Compares the guest ranges that a map calls zeros with the bytes that a guest must read. `folder` contains the files
/// of guest data.
///
/// Both sides printed this map: a difference means that both would have a guest read zeros in place of data.
pub(in crate::differential) fn compare_zeros(
    data: &GuestData,
    zeros: impl Iterator<Item = Range<u64>>,
    folder: &Path,
) -> Result<Result<(), Divergence>, RecipeError> {
    let written: Vec<Range<u64>> = zeros.flat_map(|range| written_in(data, range)).collect();
    if written.is_empty() {
        return Ok(Ok(()));
    }
    let expected = Expected::new(data, folder)?;
    let found = written.into_iter().find_map(|range| first_other_byte(&expected, range));
    Ok(found.map_or(Ok(()), |(at, byte)| {
        let detail = format!("guest offset {at}: expected {byte:#04x}, both maps have zeros");
        Err(Divergence::new(DivergenceKind::ModelDivergence, "data → zeros in the map", detail))
    }))
}

/// Returns the parts of a range that have known bytes, other than the zeros of a disk without writes.
fn written_in(data: &GuestData, range: Range<u64>) -> Vec<Range<u64>> {
    let known = data.pieces.iter().filter(|(_, content)| **content != GuestContent::Unknown);
    let within = |piece: Range<u64>| piece.start.max(range.start)..piece.end.min(range.end);
    known.map(|(piece, _)| within(piece)).filter(|part| part.start < part.end).collect()
}

/// Returns the first byte of a range that is not zero, and its offset.
fn first_other_byte(expected: &Expected<'_>, range: Range<u64>) -> Option<(u64, u8)> {
    let mut buffer = vec![0; GUEST_PIECE_BYTES];
    let mut at = range.start;
    while at < range.end {
        let (next, content) = expected.at(at);
        let length = next.min(range.end).saturating_sub(at).min(GUEST_PIECE_BYTES as u64) as usize;
        let bytes = &mut buffer[..length];
        expected.fill(content.as_ref(), at, bytes);
        if let Some((at, byte)) = (at..).zip(bytes.iter()).find(|(_, byte)| **byte != 0) {
            return Some((at, *byte));
        }
        at = at.saturating_add(length as u64);
    }
    None
}
