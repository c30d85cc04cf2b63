//! Looks up and reads a layer.

use std::fmt;

use crate::disk::extent::Mapping;
use crate::disk::image_format::ImageFormat;
use crate::disk::observer::{Event, Observer, Rare, State};
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::{Layer, Storage};
use crate::formats::anatomy::{Anatomy, Part};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{
    Cover, Declared, FormatLayer, Named, ReadBuffers, TablePieces, WalkStates,
};
use crate::formats::probe::ProbedBytes;
use crate::formats::vmdk::constants::{COWD_MAGIC, SPARSE_MAGIC};
use crate::formats::vmdk::descriptor;
use crate::formats::vmdk::grain::Grain;
use crate::formats::vmdk::head::{Identity, ImageLayout};
use crate::formats::vmdk::tables::{GrainKind, Tables};

use super::check::check;
use super::extent::{ExtentData, OpenExtent};
use super::inflate::{StoredGrain, ZlibInflater};
use super::open::Vmdk;
use super::spelled::spelled;

/// The inflater keeps nothing that an answer could depend on.
impl ReadBuffers for ZlibInflater {}

impl<'s, S: Storage + ?Sized> FormatLayer<'s, S> for Vmdk<'s, S> {
    type Buffers = ZlibInflater;

    const STATES: WalkStates = WalkStates { outer: State::WalkDirectory, inner: State::WalkGrains };

    const PARTS: &'static [Part] =
        &[Part::Header, Part::Table, Part::BlockFront, Part::Directory, Part::Metadata];

    fn is_probed(first_bytes: &ProbedBytes) -> bool {
        [SPARSE_MAGIC, COWD_MAGIC].iter().any(|magic| first_bytes.starts_with(magic))
            || descriptor::is_probed(first_bytes)
    }

    fn open(layer: &Layer<'s, S>, observer: &impl Observer) -> Result<(Self, Named), MapError> {
        let vmdk = Self::open_with(layer, &ImageLayout::read(layer.image)?, observer)?;
        let has_parent = vmdk.identity.parent_name.is_some();
        if has_parent {
            observer.rare(Rare::VmdkParent);
            observer.event(State::Open, Event::Backing);
        }
        Ok((vmdk, has_parent.then_some(Some(ImageFormat::Vmdk))))
    }

    fn declared(layer: &Layer<'s, S>) -> Result<Declared, MapError> {
        let layout = ImageLayout::read(layer.image)?;
        let parent = Identity::read(layer.image, &layout)?.parent_name;
        // Without a parent, the name is empty.
        Ok(Declared { backing_name: parent.unwrap_or_default(), ..Declared::default() })
    }

    fn spelled(part: Part, name: &str, value: u64, tables: Option<&Tables>) -> String {
        spelled(part, name, value, tables)
    }

    fn take_apart(anatomy: &mut Anatomy, image: &S) -> Result<(), MapError> {
        anatomy.read_vmdk(image)
    }

    fn check(
        layer: &Layer<'s, S>,
        _report: &mut dyn FnMut(&dyn fmt::Display),
    ) -> Option<Result<(), MapError>> {
        Some(check(layer))
    }

    fn size_bytes(&self) -> u64 {
        self.extents.last().map_or(0, |extent| extent.end.get())
    }

    fn block_bytes(&self) -> Option<u64> {
        None
    }

    fn is_cut_at(&self, end: GuestOffset) -> bool {
        self.extents.last().is_some_and(|extent| match &extent.data {
            ExtentData::Sparse(tables) => {
                let inside = end.saturating_distance_from(extent.start);
                !inside.is_multiple_of(tables.grain_bytes())
            }
            ExtentData::Flat(_) | ExtentData::Indivisible(_) => false,
        })
    }

    fn walk(&self, pieces: &mut TablePieces, cover: &mut impl Cover) -> Flow {
        self.walk_extents(&mut pieces.first, &mut pieces.second, cover)
    }

    fn lookup(&self, guest: GuestOffset) -> Result<Mapping, MapError> {
        let Some(extent) = self.extent_at(guest) else { return Ok(Mapping::HOLE) };
        let piece = extent.piece_at(guest)?;
        let mapping = extent.mapping_of(piece.grain);
        let inside = guest.saturating_distance_from(piece.start);
        Ok(mapping.advanced(inside).unwrap_or(mapping))
    }

    fn piece_bytes(&self, guest: GuestOffset) -> u64 {
        let end = self.extent_at(guest).map(|extent| extent.end_of_piece(guest));
        end.map_or(u64::MAX, |end| end.saturating_distance_from(guest)).max(1)
    }

    fn read_piece(
        &self,
        guest: GuestOffset,
        into: &mut [u8],
        inflater: &mut ZlibInflater,
    ) -> Result<bool, MapError> {
        let Some(extent) = self.extent_at(guest) else { return Ok(false) };
        let piece = extent.piece_at(guest)?;
        let inside = guest.saturating_distance_from(piece.start);
        let host = match piece.grain {
            Grain::Unallocated => return Ok(false),
            Grain::Zero => {
                into.fill(0);
                return Ok(true);
            }
            Grain::At(host) => host,
        };
        match extent.data {
            ExtentData::Sparse(Tables { kind: GrainKind::Compressed { has_marker }, .. }) => {
                let bytes = piece.end.saturating_distance_from(piece.start);
                let stored = StoredGrain { offset: host, has_marker, bytes };
                let inflated = inflater.inflate(extent.file, stored, inside, into);
                inflated.map_err(|error| error.at(piece.start))?;
            }
            _ => extent.file.read_at(host + inside, into)?,
        }
        Ok(true)
    }

    /// As in QEMU, a parent with another content is an error only where it is read.
    fn check_parent(&self, parent: &Self) -> Result<(), MapError> {
        let wanted = self.identity.parent_content;
        match wanted == parent.identity.content {
            true => Ok(()),
            false => Err(MapError::Header {
                field: "parentCID",
                found: wanted.into(),
                expected: "the CID of the parent",
            }),
        }
    }

    fn file_with_holes(&self, guest: GuestOffset) -> Option<&'s S> {
        let extent = self.extent_at(guest)?;
        matches!(extent.data, ExtentData::Flat(_)).then_some(extent.file)
    }

    fn extent_index(&self, guest: GuestOffset) -> Option<usize> {
        let index = self.extents.partition_point(|extent| extent.end <= guest);
        (index < self.extents.len()).then_some(index)
    }
}

impl<'s, S: Storage + ?Sized> Vmdk<'s, S> {
    pub(super) fn extent_at(&self, guest: GuestOffset) -> Option<&OpenExtent<'s, S>> {
        self.extents.get(self.extent_index(guest)?)
    }
}
