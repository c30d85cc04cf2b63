//! Block allocation tables: an entry of 32 bits for each block of the disk. A block that the file does not store reads
//! as zeros.

use std::ops::ControlFlow;

use crate::disk::extent::Mapping;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::Storage;
use crate::formats::entries::{EntryRun, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{Cover, entries_of, go_on};

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

    /// Returns the number of guest bytes from `guest` to the end of its block.
    pub(crate) fn rest_of_block(&self, guest: GuestOffset) -> u64 {
        self.block_bytes - guest.get() % self.block_bytes
    }
}

/// Fills `into` with the bytes at `host`, or with zeros if the file does not store their block. Returns true, which is
/// the answer of [`FormatLayer::read_piece`]: a block that is not stored is zeros here, and no hole.
///
/// [`FormatLayer::read_piece`]: crate::formats::layer::FormatLayer::read_piece
/// # Errors
/// The read failed.
pub(crate) fn read_block<S: Storage + ?Sized>(
    image: &S,
    host: Option<HostOffset>,
    into: &mut [u8],
) -> Result<bool, MapError> {
    match host {
        Some(host) => image.read_at(host, into)?,
        None => into.fill(0),
    }
    Ok(true)
}

/// Returns the mapping of bytes at `host`. QEMU's drivers report blocks that the file does not store as present: they
/// are zeros of this image.
pub(crate) fn mapping_of(host: Option<HostOffset>) -> Mapping {
    let (data, zero) = (host.is_some(), host.is_none());
    Mapping { present: true, zero, data, offset: host, ..Mapping::HOLE }
}
