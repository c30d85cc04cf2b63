//! Walks, looks up and reads the blocks of an image. As in QEMU, the bitmap of a block does not matter.

use crate::disk::extent::Mapping;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Layer, Storage};
use crate::formats::anatomy::{Anatomy, Part};
use crate::formats::blocks::{Blocks, mapping_of, read_block};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{
    Cover, ExtentTables, FormatLayer, Named, TablePieces, WalkStates, go_on, in_place,
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
        let data_of = |entry| header.data_of(u32::from_be_bytes(entry));
        self.table(header).walk(State::WalkVhd, data_of, &mut pieces.first, cover)
    }

    fn lookup(&self, guest: GuestOffset) -> Result<Mapping, MapError> {
        Ok(mapping_of(self.host_of(guest)?))
    }

    fn piece_bytes(&self, guest: GuestOffset) -> u64 {
        self.blocks.as_ref().map_or(u64::MAX, |header| self.table(header).rest_of_block(guest))
    }

    fn read_piece(
        &self,
        guest: GuestOffset,
        into: &mut [u8],
        (): &mut (),
    ) -> Result<bool, MapError> {
        read_block(self.image, self.host_of(guest)?, into)
    }

    fn file_with_holes(&self, _guest: GuestOffset) -> Option<&'s S> {
        self.blocks.is_none().then_some(self.image)
    }
}

impl<'s, S: Storage + ?Sized> Vpc<'s, S> {
    /// Returns the table of a dynamic disk.
    fn table(&self, header: &DynamicHeader) -> Blocks<'s, S> {
        let (table, block_bytes) = (header.table_offset, header.block_bytes.into());
        Blocks { image: self.image, table, block_bytes }
    }

    /// Returns the host offset of a guest byte, or `None` if the file does not store its block.
    fn host_of(&self, guest: GuestOffset) -> Result<Option<HostOffset>, MapError> {
        match &self.blocks {
            None => Ok(Some(in_place(guest))),
            Some(header) => {
                self.table(header).host_of(guest, |entry| header.data_of(u32::from_be_bytes(entry)))
            }
        }
    }
}
