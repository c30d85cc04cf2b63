//! How the oracle reads an image.

use std::ops::ControlFlow;

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::entries::{EntryRun, each_entries};
use crate::formats::error::MapError;
use crate::harness::oracles::{OracleResult, Violation, disagreement};
use crate::images::files::image::Image;

pub(super) const ORACLE: &str = "layout";

/// The bytes of a table that are read at a time. Nearly all are borrowed instead.
const TABLE_PIECE_BYTES: usize = 256;

/// Reads `N` bytes of a built image. Bytes past the end are zeros.
pub(super) fn read<const N: usize>(image: &Image, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    // Reads from memory do not fail.
    let _ = image.read_at(HostOffset::new(at), &mut bytes);
    bytes
}

/// Calls `take` with each run of equal entries in a table of `count` entries, as far as it succeeds.
pub(super) fn each_run<const N: usize>(
    image: &Image,
    table: u64,
    count: u64,
    mut take: impl FnMut(EntryRun<N>) -> OracleResult,
) -> OracleResult {
    let mut verdict = Ok(());
    let (table, mut scratch) = (HostOffset::new(table), [0; TABLE_PIECE_BYTES]);
    // Reads from memory do not fail.
    let _ = each_entries(image, table, 0..count, &mut scratch, |entries| {
        verdict = entries.runs().try_for_each(&mut take);
        Ok::<_, StorageError>(match verdict.is_ok() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })
    });
    verdict
}

/// Reports whether two tables have the same bytes.
pub(super) fn is_copy(image: &Image, table: u64, copy: u64, length: u64) -> bool {
    let mut at = 0;
    let (mut scratch, mut other_scratch) = ([0; TABLE_PIECE_BYTES], [0; TABLE_PIECE_BYTES]);
    while at < length {
        let left = length - at;
        let front = front_of(image, table.saturating_add(at), left, &mut scratch);
        let other = front_of(image, copy.saturating_add(at), left, &mut other_scratch);
        let (count, is_same) = match (front, other) {
            (Front::Hole(count), Front::Hole(other)) => (count.min(other), true),
            (Front::Data(one), Front::Data(other)) => {
                let count = one.len().min(other.len());
                (count as u64, one[..count] == other[..count])
            }
            (Front::Hole(hole), Front::Data(data)) | (Front::Data(data), Front::Hole(hole)) => {
                let count = hole.min(data.len() as u64);
                (count, data[..count as usize].iter().all(|byte| *byte == 0))
            }
        };
        if !is_same {
            return false;
        }
        at += count;
    }
    true
}

/// The front of a part of an image; at least one byte.
enum Front<'i> {
    /// The number of bytes that the image does not store.
    Hole(u64),
    /// Bytes that it stores.
    Data(&'i [u8]),
}

/// Returns the front of the `length` bytes from `at` on. Nearly all data are borrowed from the image; `scratch` has
/// room for the others.
fn front_of<'i>(image: &'i Image, at: u64, length: u64, scratch: &'i mut [u8]) -> Front<'i> {
    let (from, until) = (HostOffset::new(at), HostOffset::new(at.saturating_add(length)));
    // Reads from memory do not fail.
    let data = image.next_data(from, until, scratch).ok().flatten();
    match data.map(|data| (data.offset.saturating_distance_from(from), data.bytes)) {
        // Data may reach past the end of the part.
        Some((0, bytes)) if !bytes.is_empty() => {
            Front::Data(bytes.get(..length as usize).unwrap_or(bytes))
        }
        Some((hole, _)) => Front::Hole(hole.clamp(1, length)),
        None => Front::Hole(length),
    }
}

/// Returns the violation for a structure that a reader refuses.
pub(super) fn refused(field: &'static str, error: &MapError) -> Box<Violation> {
    disagreement(ORACLE, field, ("valid", "refused"), error.to_string())
}
