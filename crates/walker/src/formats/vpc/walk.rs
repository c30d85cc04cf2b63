//! Walks, looks up and reads the blocks of an image. As in QEMU, the bitmap of a block does not matter.

use std::ops::{ControlFlow, Range};

use crate::disk::extent::Mapping;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Layer, Storage};
use crate::formats::anatomy::{Anatomy, Part};
use crate::formats::entries::{EntryRun, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{
    Cover, ExtentTables, FormatLayer, Named, TablePieces, WalkStates, entries_of, go_on, in_place,
};
use crate::formats::probe::ProbedBytes;
use crate::formats::vpc::constants::COOKIE;
use crate::formats::vpc::dynamic_header::DynamicHeader;

use super::open::{Vpc, open};
use super::spelled::spelled;

impl<'s, S: Storage + ?Sized> FormatLayer<'s, S> for Vpc<'s, S> {
    type Buffers = ();

    const STATES: WalkStates = WalkStates { outer: State::WalkVhd, inner: State::WalkVhd };

    const PARTS: &'static [Part] = &[Part::Header, Part::Table, Part::BlockFront];

    fn is_probed(first_bytes: &ProbedBytes) -> bool {
        first_bytes.starts_with(&COOKIE)
    }

    fn open(layer: &Layer<'s, S>, observer: &impl Observer) -> Result<(Self, Named), MapError> {
        Ok((open(layer.image, observer)?, None))
    }

    fn spelled(part: Part, name: &str, value: u64, _tables: Option<&ExtentTables>) -> String {
        spelled(part, name, value)
    }

    fn take_apart(anatomy: &mut Anatomy, image: &S) -> Result<(), MapError> {
        anatomy.read_vpc(image)
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn block_bytes(&self) -> Option<u64> {
        self.blocks.as_ref().map(|header| header.block_bytes.into())
    }

    fn walk(&self, pieces: &mut TablePieces, cover: &mut impl Cover) -> Flow {
        cover.observer().begin(State::WalkVhd);
        let Some(header) = &self.blocks else {
            go_on!(cover.step());
            cover.observer().event(State::WalkVhd, Event::Normal);
            let (from, end) = (in_place(cover.position()), cover.end());
            return Ok(cover.put(end, mapping_of(Some(from))));
        };
        let (position, end) = (cover.position().get(), cover.end().get());
        let indices = entries_of(position, end, header.block_bytes.trailing_zeros());
        each_entries(
            self.image,
            header.table_offset,
            indices,
            &mut pieces.first,
            |entries| -> Flow {
                go_on!(cover.step());
                cover.observer().event(State::WalkVhd, Event::Piece);
                for EntryRun { indices, entry } in entries.runs() {
                    go_on!(equal_blocks(header, indices, u32::from_be_bytes(entry), cover)?);
                }
                Ok(ControlFlow::Continue(()))
            },
        )
    }

    fn lookup(&self, guest: GuestOffset) -> Result<Mapping, MapError> {
        Ok(mapping_of(self.host_of(guest)?))
    }

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

    fn file_with_holes(&self, _guest: GuestOffset) -> Option<&'s S> {
        self.blocks.is_none().then_some(self.image)
    }
}

impl<S: Storage + ?Sized> Vpc<'_, S> {
    /// Returns the host offset of a guest byte, or `None` if the file does not store its block.
    fn host_of(&self, guest: GuestOffset) -> Result<Option<HostOffset>, MapError> {
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
