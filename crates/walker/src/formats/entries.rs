//! Tables of images: reads their entries, piece by piece, and walks block allocation tables, which have an entry of 32
//! bits for each block of the disk. A part of a table that lies in a hole of the file, or past its end, costs nothing
//! to read.
//!
//! # Arithmetic
//! A table that passes 2^64 lies past the end of every file, where all entries are zeros. No index reaches 2^64.

use std::ops::{ControlFlow, Range};

use crate::disk::error::StorageError;
use crate::disk::extent::Mapping;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::Storage;
use crate::formats::anatomy::{Anatomy, ByteOrder, Element, Part};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{Cover, entries_of, go_on};

/// Entries of a table, each of `N` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entries<'a, const N: usize> {
    /// The index of the first entry, and the entries.
    Read(u64, &'a [[u8; N]]),
    /// The indices of entries that consist of zeros, because the file does not store them.
    Zeros(Range<u64>),
}

/// Equal entries that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRun<const N: usize> {
    /// The indices of the entries; at least one.
    pub indices: Range<u64>,
    /// Each of the entries.
    pub entry: [u8; N],
}

impl<const N: usize> Entries<'_, N> {
    /// Returns the runs of equal entries, in order. Most tables consist of a few long runs.
    pub fn runs(&self) -> impl Iterator<Item = EntryRun<N>> + '_ {
        let (mut start, mut rest, zeros) = match self {
            Self::Read(first, entries) => (*first, *entries, None),
            Self::Zeros(indices) => (0, [].as_slice(), Some(indices.clone())),
        };
        let zeros = zeros.filter(|indices| !indices.is_empty());
        let zeros = zeros.map(|indices| EntryRun { indices, entry: [0; N] });
        zeros.into_iter().chain(std::iter::from_fn(move || {
            let entry = *rest.first()?;
            let length = run_length(rest);
            let end = start.saturating_add(length as u64);
            let run = EntryRun { indices: start..end, entry };
            (start, rest) = (end, rest.get(length..).unwrap_or_default());
            Some(run)
        }))
    }
}

/// Calls `take` with the entries at `indices` of the table at `table`, in order, until it breaks. `scratch` has room
/// for [`GRAIN_BYTES`](crate::disk::storage::GRAIN_BYTES).
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
    let place = |index: u64| table.checked_add(index.checked_mul(N as u64)?);
    let Some(end) = place(indices.end) else { return take(Entries::Zeros(indices)) };
    let mut index = indices.start;
    while index < indices.end {
        let from = place(index).unwrap_or(end);
        let Some(data) = storage.next_data(from, end, scratch)? else {
            return take(Entries::Zeros(index..indices.end));
        };
        let skipped = data.offset.saturating_distance_from(from);
        let first = index.saturating_add(skipped / N as u64);
        if index < first && take(Entries::Zeros(index..first))?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        // The data may begin or end inside an entry that is longer than a grain.
        let whole = if skipped.is_multiple_of(N as u64) { data.bytes.as_chunks().0 } else { &[] };
        let left = usize::try_from(indices.end.saturating_sub(first)).unwrap_or(usize::MAX);
        let mut one = [[0; N]];
        let entries = match whole.get(..left).unwrap_or(whole) {
            [] => {
                storage.read_at(place(first).unwrap_or(end), &mut one[0])?;
                one.as_slice()
            }
            entries => entries,
        };
        index = first.saturating_add(entries.len() as u64);
        if take(Entries::Read(first, entries))?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Returns the length of the run at the front; at least 1.
fn run_length<const N: usize>(entries: &[[u8; N]]) -> usize {
    // Many entries are compared together: bytes that equal those one entry later repeat one entry.
    const TOGETHER: usize = 64;
    let behind = entries.get(1..).unwrap_or_default();
    let pairs = entries.as_chunks::<TOGETHER>().0.iter().zip(behind.as_chunks::<TOGETHER>().0);
    let equal = pairs.take_while(|(here, then)| here == then).count() * TOGETHER;
    let pairs = entries.iter().zip(behind).skip(equal);
    1 + equal + pairs.take_while(|(here, then)| here == then).count()
}

/// The length of an entry in bytes.
pub(crate) const BLOCK_ENTRY_BYTES: u64 = 4;

/// The table of an open image.
#[derive(Debug)]
pub(crate) struct Blocks<'s, S: Storage + ?Sized> {
    pub(crate) image: &'s S,
    /// The host offset of the table.
    pub(crate) table: HostOffset,
    /// The number of guest bytes in a block: a power of two.
    pub(crate) block_bytes: u64,
}

impl<S: Storage + ?Sized> Blocks<'_, S> {
    /// Walks the window. `data_of` returns the host offset of the data of a block by its entry; `None` if the file does
    /// not store the block. `piece` holds a part of the table.
    pub(crate) fn walk(
        &self,
        state: State,
        data_of: impl Fn([u8; 4]) -> Option<HostOffset>,
        piece: &mut [u8],
        cover: &mut impl Cover,
    ) -> Flow {
        let (position, end) = (cover.position().get(), cover.end().get());
        let indices = entries_of(position, end, self.block_bytes.trailing_zeros());
        // No disk with such a table has 2^63 bytes.
        let start_of = |index: u64| GuestOffset::new(index.saturating_mul(self.block_bytes));
        each_entries(self.image, self.table, indices, piece, |entries| -> Flow {
            go_on!(cover.step());
            cover.observer().event(state, Event::Piece);
            for EntryRun { indices, entry } in entries.runs() {
                let Some(host) = data_of(entry) else {
                    let (start, end) = (start_of(indices.start), start_of(indices.end));
                    go_on!(cover.cover(start, end, mapping_of(None))?);
                    continue;
                };
                for index in indices {
                    let end = start_of(index.saturating_add(1));
                    go_on!(cover.cover(start_of(index), end, mapping_of(Some(host)))?);
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Returns the host offset of a guest byte, or `None` if the file does not store its block.
    ///
    /// # Errors
    /// A read failed.
    pub(crate) fn host_of(
        &self,
        guest: GuestOffset,
        data_of: impl Fn([u8; 4]) -> Option<HostOffset>,
    ) -> Result<Option<HostOffset>, MapError> {
        let mut entry = [0; 4];
        let index = guest.get() / self.block_bytes;
        self.image.read_at(self.table + index * BLOCK_ENTRY_BYTES, &mut entry)?;
        Ok(data_of(entry).map(|data| data + guest.get() % self.block_bytes))
    }
}

/// The number of bytes of a block table that are read at a time.
const BLOCK_PIECE_BYTES: usize = 512;

impl Anatomy {
    /// Adds the entries of a block table that begins at `table`: an entry of 4 bytes for each block of `block_bytes`.
    /// An entry of ones names no block, and is left out. Calls `add_block` with the guest range and the bytes of each
    /// other entry.
    pub(super) fn add_blocks<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        (table, entries): (HostOffset, u64),
        (block_bytes, order): (u64, ByteOrder),
        mut add_block: impl FnMut(&mut Self, Range<u64>, [u8; 4]),
    ) -> Result<(), MapError> {
        let place = |index: u64| table + index.saturating_mul(BLOCK_ENTRY_BYTES);
        self.add_table(Part::Table, table, entries.saturating_mul(BLOCK_ENTRY_BYTES));
        let (end, mut scratch) = (place(entries), [0; BLOCK_PIECE_BYTES]);
        let _ = each_entries(storage, table, 0..entries, &mut scratch, |piece| -> Flow {
            for EntryRun { indices, entry } in piece.runs().filter(|run| run.entry != [0xff; 4]) {
                for index in indices {
                    let start = index.saturating_mul(block_bytes);
                    let guest = start..start.saturating_add(block_bytes);
                    let element = Element::field(Part::Table, "", place(index), 4, guest.clone());
                    self.push(Element { order, ..element }.in_table(BLOCK_ENTRY_BYTES, end));
                    add_block(self, guest, entry);
                    if self.room().is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(())
    }
}

/// The reads of a layer that consists of blocks, by its functions `block_bytes` and `host_of`. A block that the file
/// does not store is zeros, and no hole.
macro_rules! block_reads {
    () => {
        fn piece_bytes(&self, guest: GuestOffset) -> u64 {
            self.block_bytes().map_or(u64::MAX, |block| block - guest.get() % block)
        }

        fn read_piece(
            &self,
            guest: GuestOffset,
            into: &mut [u8],
            (): &mut (),
        ) -> Result<bool, MapError> {
            match self.host_of(guest)? {
                Some(host) => self.image.read_at(host, into)?,
                None => into.fill(0),
            }
            Ok(true)
        }
    };
}
pub(crate) use block_reads;

/// Returns the mapping of bytes at `host`. QEMU's drivers report blocks that the file does not store as present: they
/// are zeros of this image.
pub(crate) fn mapping_of(host: Option<HostOffset>) -> Mapping {
    let (data, zero) = (host.is_some(), host.is_none());
    Mapping { present: true, zero, data, offset: host, ..Mapping::HOLE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::storage::{Data, read_widened};

    /// A file of 1 MiB with 64 bytes of data, which begin and end inside an entry of 32 bytes.
    struct OneSegment;

    impl OneSegment {
        const DATA: Range<u64> = 3 * 32 + 16..3 * 32 + 16 + 64;
    }

    impl Storage for OneSegment {
        fn length_bytes(&self) -> u64 {
            1 << 20
        }

        fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
            let offsets = offset.get()..;
            into.iter_mut().zip(offsets).for_each(|(byte, at)| {
                *byte = if Self::DATA.contains(&at) { 7 } else { 0 };
            });
            Ok(())
        }

        fn next_data<'a>(
            &'a self,
            from: HostOffset,
            until: HostOffset,
            scratch: &'a mut [u8],
        ) -> Result<Option<Data<'a>>, StorageError> {
            let [start, end] = [Self::DATA.start, Self::DATA.end].map(HostOffset::new);
            match from < end && start < until {
                true => read_widened(self, from, from.max(start), until.min(end), scratch),
                false => Ok(None),
            }
        }
    }

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
        for room in [16, 17, 4096] {
            assert_eq!(entries_of(&bytes, 0, 0..10, room), ((1..=10).collect(), 0));
            assert_eq!(entries_of(&bytes, 8, 1..3, room), (vec![4, 5], 0));
        }
    }

    #[test]
    fn holes_are_not_read() {
        let (mut pieces, mut scratch) = (Vec::new(), [0; 64]);
        let ended = each_entries(&OneSegment, HostOffset::ZERO, 0..10, &mut scratch, |entries| {
            pieces.push(match entries {
                Entries::Read(first, entries) => (first, entries.to_vec()),
                Entries::Zeros(indices) => (indices.start, vec![]),
            });
            Ok::<_, StorageError>(ControlFlow::Continue(()))
        });
        assert_eq!(ended, Ok(ControlFlow::Continue(())));
        let (mut begun, mut ended) = ([0; 32], [0; 32]);
        begun[16..].fill(7);
        ended[..16].fill(7);
        let read = [(3, vec![begun]), (4, vec![[7; 32]]), (5, vec![ended])];
        let expected = [&[(0, vec![])], &read[..], &[(6, vec![])]].concat();
        assert_eq!(pieces, expected);
    }

    #[test]
    fn runs_are_as_long_as_entries_are_equal() {
        assert_eq!(Entries::<4>::Read(7, &[]).runs().count(), 0);
        for lengths in [vec![1], vec![1, 1, 2], vec![31, 32, 33], vec![100, 1, 64, 65, 5]] {
            let (mut entries, mut expected, mut start) = (Vec::new(), Vec::new(), 7);
            for (length, value) in lengths.into_iter().zip(0u32..) {
                let entry = value.to_be_bytes();
                entries.extend(std::iter::repeat_n(entry, length));
                expected.push(EntryRun { indices: start..start + length as u64, entry });
                start += length as u64;
            }
            assert_eq!(Entries::Read(7, &entries).runs().collect::<Vec<_>>(), expected);
        }
        let zeros = EntryRun { indices: 7..1 << 40, entry: [0; 4] };
        assert_eq!(Entries::Zeros(7..1 << 40).runs().collect::<Vec<_>>(), [zeros]);
        assert_eq!(Entries::<4>::Zeros(7..7).runs().count(), 0);
    }

    #[test]
    fn entries_past_the_end_are_zeros() {
        let bytes: Vec<u8> = (1u32..=2).flat_map(u32::to_be_bytes).chain([0xff]).collect();
        // The file ends inside the third entry, which the grain of the fourth one holds, too.
        let read = vec![1, 2, 0xff00_0000, 0];
        assert_eq!(entries_of(&bytes, 0, 0..1 << 40, 64), (read, (1 << 40) - 4));
        assert_eq!(entries_of(&bytes, u64::MAX - 7, 0..1 << 40, 64), (vec![], 1 << 40));
    }
}
