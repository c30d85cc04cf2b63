//! Walks, looks up and reads the blocks of an image.

use std::fmt;

use crate::disk::extent::Mapping;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Layer, Storage};
use crate::formats::anatomy::{Anatomy, Part};
use crate::formats::blocks::{Blocks, mapping_of, read_block};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{Cover, ExtentTables, FormatLayer, Named, TablePieces, WalkStates};
use crate::formats::probe::ProbedBytes;

use super::anatomy;
use super::check::check;
use super::constants::{VDI_BLOCK_BYTES, VDI_SIGNATURE, header};
use super::header::VdiHeader;

/// An open VDI image.
#[derive(Debug)]
pub(crate) struct Vdi<'s, S: Storage + ?Sized> {
    image: &'s S,
    header: VdiHeader,
}

impl<'s, S: Storage + ?Sized> FormatLayer<'s, S> for Vdi<'s, S> {
    type Buffers = ();

    const STATES: WalkStates = WalkStates { outer: State::WalkVhd, inner: State::WalkVhd };

    const PARTS: &'static [Part] = &[Part::Header, Part::Table];

    fn is_probed(first_bytes: &ProbedBytes) -> bool {
        header::SIGNATURE.little_32(first_bytes) == VDI_SIGNATURE
    }

    fn open(layer: &Layer<'s, S>, observer: &impl Observer) -> Result<(Self, Named), MapError> {
        let header = VdiHeader::read(layer.image)?;
        observer.event(State::Open, Event::Header);
        Ok((Self { image: layer.image, header }, None))
    }

    fn take_apart(anatomy: &mut Anatomy, image: &S) -> Result<(), MapError> {
        anatomy::take_apart(anatomy, image)
    }

    fn spelled(part: Part, name: &str, value: u64, _tables: Option<&ExtentTables>) -> String {
        anatomy::spelled(part, name, value)
    }

    fn check(
        layer: &Layer<'s, S>,
        report: &mut dyn FnMut(&dyn fmt::Display),
    ) -> Option<Result<(), MapError>> {
        Some(check(layer.image, report))
    }

    fn size_bytes(&self) -> u64 {
        self.header.size_bytes
    }

    fn block_bytes(&self) -> Option<u64> {
        Some(VDI_BLOCK_BYTES)
    }

    fn walk(&self, pieces: &mut TablePieces, cover: &mut impl Cover) -> Flow {
        cover.observer().begin(State::WalkVhd);
        let data_of = |entry| self.header.data_of(entry);
        self.blocks().walk(State::WalkVhd, data_of, &mut pieces.first, cover)
    }

    fn lookup(&self, guest: GuestOffset) -> Result<Mapping, MapError> {
        Ok(mapping_of(self.host_of(guest)?))
    }

    fn piece_bytes(&self, guest: GuestOffset) -> u64 {
        self.blocks().rest_of_block(guest)
    }

    fn read_piece(
        &self,
        guest: GuestOffset,
        into: &mut [u8],
        (): &mut (),
    ) -> Result<bool, MapError> {
        read_block(self.image, self.host_of(guest)?, into)
    }

    /// QEMU asks only for static images.
    fn file_with_holes(&self, _guest: GuestOffset) -> Option<&'s S> {
        self.header.is_static.then_some(self.image)
    }
}

impl<'s, S: Storage + ?Sized> Vdi<'s, S> {
    fn blocks(&self) -> Blocks<'s, S> {
        Blocks { image: self.image, table: self.header.map, block_bytes: VDI_BLOCK_BYTES }
    }

    /// Returns the host offset of a guest byte, or `None` if the file does not store its block.
    fn host_of(&self, guest: GuestOffset) -> Result<Option<HostOffset>, MapError> {
        self.blocks().host_of(guest, |entry| self.header.data_of(entry))
    }
}
