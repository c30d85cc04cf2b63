//! Reads the entries of tables, piece by piece. A part of a table that lies in a hole of the file, or past its end,
//! costs nothing to read.
//!
//! # Arithmetic
//! A table that passes 2^64 lies past the end of every file, where all entries are zeros.

use std::ops::{ControlFlow, Range};

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Storage, Stored};

/// Entries of a table, each of `N` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entries<'a, const N: usize> {
    /// The index of the first entry, and the entries.
    Read(u64, &'a [[u8; N]]),
    /// The indices of entries that consist of zeros, because the file does not store them.
    Zeros(Range<u64>),
}

/// Calls `take` with the entries at `indices` of the table at `table`, in order, until it breaks. `scratch` has room
/// for at least one entry.
///
/// # Errors
/// A read fails, or `take` breaks with an error.
pub fn each_entries<const N: usize, S: Storage + ?Sized, E: From<StorageError>>(
    storage: &S,
    table: HostOffset,
    indices: Range<u64>,
    scratch: &mut [u8],
    mut take: impl FnMut(Entries<'_, N>) -> Result<ControlFlow<()>, E>,
) -> Result<ControlFlow<()>, E> {
    let entry_bytes = N as u64;
    let end = indices.end.checked_mul(entry_bytes).and_then(|bytes| table.checked_add(bytes));
    let Some(end) = end else { return take(Entries::Zeros(indices)) };
    let mut index = indices.start;
    let mut stored = Stored { stored: false, end: HostOffset::ZERO };
    while index < indices.end {
        let from = table.saturating_add(index.saturating_mul(entry_bytes));
        // A file is asked once for all pieces that it stores in one part.
        if stored.end <= from {
            stored = storage.stored(from, end)?;
        }
        let whole = stored.end.saturating_distance_from(from) / entry_bytes;
        let entries = match (stored.stored, whole) {
            (false, 1..) => Entries::Zeros(index..index.saturating_add(whole)),
            // The file may store a part of the entry at the edge of a hole.
            _ => {
                let room = (scratch.len() / N) as u64;
                let count = whole.clamp(1, room.max(1));
                let length =
                    usize::try_from(count.saturating_mul(entry_bytes)).unwrap_or(usize::MAX);
                let Some(piece) = scratch.get_mut(..length) else { break };
                storage.read_at(from, piece)?;
                Entries::Read(index, piece.as_chunks::<N>().0)
            }
        };
        index = match &entries {
            Entries::Read(_, entries) => index.saturating_add(entries.len() as u64),
            Entries::Zeros(range) => range.end,
        };
        if take(entries)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the entries of a table as numbers, and the number of those that were not read.
    fn entries_of(storage: &[u8], table: u64, indices: Range<u64>, room: usize) -> (Vec<u32>, u64) {
        let (mut all, mut zeros) = (Vec::new(), 0);
        let mut scratch = vec![0; room];
        let ended =
            each_entries(storage, HostOffset::new(table), indices, &mut scratch, |entries| {
                match entries {
                    Entries::Read(_, entries) => {
                        all.extend(entries.iter().map(|it| u32::from_be_bytes(*it)))
                    }
                    Entries::Zeros(range) => zeros += range.end - range.start,
                }
                Ok::<_, StorageError>(ControlFlow::Continue(()))
            });
        assert_eq!(ended, Ok(ControlFlow::Continue(())));
        (all, zeros)
    }

    #[test]
    fn entries_come_in_pieces() {
        let bytes: Vec<u8> = (1u32..=10).flat_map(u32::to_be_bytes).collect();
        for room in [4, 7, 8, 4096] {
            assert_eq!(entries_of(&bytes, 0, 0..10, room), ((1..=10).collect(), 0));
            assert_eq!(entries_of(&bytes, 8, 1..3, room), (vec![4, 5], 0));
        }
    }

    #[test]
    fn entries_past_the_end_are_zeros() {
        let bytes: Vec<u8> = (1u32..=2).flat_map(u32::to_be_bytes).chain([0xff]).collect();
        // The file ends inside the third entry.
        assert_eq!(entries_of(&bytes, 0, 0..1 << 40, 64), (vec![1, 2, 0xff00_0000], (1 << 40) - 3));
        assert_eq!(entries_of(&bytes, u64::MAX - 7, 0..1 << 40, 64), (vec![], 1 << 40));
    }
}
