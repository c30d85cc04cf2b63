//! Walks and looks up the blocks of an image.

use std::ops::{ControlFlow, Range};

use crate::disk::extent::Mapping;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::Storage;
use crate::formats::entries::{EntryRun, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::vpc::dynamic_header::DynamicHeader;
use crate::walkers::cover::{Cover, entries_of, go_on, in_place};

use super::open::Vpc;

impl<S: Storage + ?Sized> Vpc<'_, S> {
    /// Walks the window. `scratch` holds a piece of the block allocation table.
    pub(in crate::walkers) fn walk(&self, scratch: &mut [u8], cover: &mut impl Cover) -> Flow {
        cover.observer().begin(State::WalkVhd);
        let Some(header) = &self.blocks else {
            go_on!(cover.step());
            cover.observer().event(State::WalkVhd, Event::Normal);
            let (from, end) = (in_place(cover.position()), cover.end());
            return Ok(cover.put(end, mapping_of(Some(from))));
        };
        let (position, end) = (cover.position().get(), cover.end().get());
        let indices = entries_of(position, end, header.block_bytes.trailing_zeros());
        each_entries(self.image, header.table_offset, indices, scratch, |entries| -> Flow {
            go_on!(cover.step());
            cover.observer().event(State::WalkVhd, Event::Piece);
            for EntryRun { indices, entry } in entries.runs() {
                go_on!(equal_blocks(header, indices, u32::from_be_bytes(entry), cover)?);
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Returns the mapping of a guest byte.
    pub(in crate::walkers) fn lookup(&self, guest: GuestOffset) -> Result<Mapping, MapError> {
        Ok(mapping_of(self.host_of(guest)?))
    }

    /// Returns the host offset of a guest byte, or `None` if the file does not store its block.
    pub(super) fn host_of(&self, guest: GuestOffset) -> Result<Option<HostOffset>, MapError> {
        let Some(header) = &self.blocks else { return Ok(Some(in_place(guest))) };
        let block = u64::from(header.block_bytes);
        let mut entry = [0; 4];
        let at = header.table_offset + guest.get() / block * 4;
        self.image.read_at(at, &mut entry)?;
        let data = header.data_of(u32::from_be_bytes(entry));
        Ok(data.map(|data| data + guest.get() % block))
    }
}

/// Covers the blocks at `indices`, whose table entries are all `entry`.
fn equal_blocks(
    header: &DynamicHeader,
    indices: Range<u64>,
    entry: u32,
    cover: &mut impl Cover,
) -> Flow {
    // The table covers a disk of at most 2040 GiB, and one block more.
    let start_of =
        |index: u64| GuestOffset::new(index.saturating_mul(u64::from(header.block_bytes)));
    let Some(host) = header.data_of(entry) else {
        return cover.cover(start_of(indices.start), start_of(indices.end), mapping_of(None));
    };
    for index in indices {
        let end = start_of(index.saturating_add(1));
        go_on!(cover.cover(start_of(index), end, mapping_of(Some(host)))?);
    }
    Ok(ControlFlow::Continue(()))
}

/// Returns the mapping of bytes at `host`. QEMU's driver reports blocks that the file does not store as present: they
/// are zeros of this image.
fn mapping_of(host: Option<HostOffset>) -> Mapping {
    let (data, zero) = (host.is_some(), host.is_none());
    Mapping { present: true, zero, data, offset: host, ..Mapping::HOLE }
}
