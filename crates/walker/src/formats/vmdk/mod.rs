//! The VMDK format (VMware, "Virtual Disk Format 5.0"), and the two formats of extents that ESX writes. All numbers in
//! a file are little-endian, and offsets are in sectors.
//!
//! A disk consists of extents. An image is one sparse extent, or a descriptor: a text that names the files of the
//! extents.
//!
//! The answers are those of QEMU 10.0.2, with these exceptions:
//!
//! - If an extent before others ends inside a grain, QEMU gives the whole grain to it, and a query that begins behind
//!   its end to the next extent. This walker does so, too, but asks a parent in longer pieces than QEMU.
//! - An extent of 2^63 sectors or more, which moves later extents to the front in QEMU, is refused; so is a descriptor
//!   in the file of an extent, which QEMU opens again and again if it names itself. A disk of 2^63 bytes or more is
//!   refused, too: QEMU opens some of them, and can check them, but neither map nor read them.
//! - An ESX extent by whose grain tables QEMU divides by zero, or whose tables map more than 2^32 sectors, is an error
//!   where it is walked.
//! - QEMU prints host offsets of 2^63 and more as negative numbers, and cannot read them.

pub mod anatomy;
mod check;
pub mod constants;
pub mod descriptor;
pub mod head;
pub mod headers;
mod inflate;
mod open;
pub mod tables;
mod walk;

use std::fmt;

use crate::disk::extent::Mapping;
use crate::disk::image_format::ImageFormat;
use crate::disk::observer::{Event, Observer, Rare, State};
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::{Layer, Storage};
use crate::formats::anatomy::{Anatomy, Part};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{
    Cover, Declared, FormatLayer, Named, ProbedBytes, ReadBuffers, TablePieces, WalkStates,
};
use crate::formats::vmdk::anatomy::spelled;
use crate::formats::vmdk::check::check;
use crate::formats::vmdk::constants::{COWD_MAGIC, SPARSE_MAGIC, rare};
use crate::formats::vmdk::descriptor::{ExtentLine, is_probed};
use crate::formats::vmdk::head::{Identity, ImageLayout};
use crate::formats::vmdk::inflate::{StoredGrain, ZlibInflater};
pub(crate) use crate::formats::vmdk::open::Vmdk;
use crate::formats::vmdk::open::{ExtentData, OpenExtent};
use crate::formats::vmdk::tables::{Grain, GrainKind, Tables};

/// The inflater keeps nothing that an answer could depend on.
impl ReadBuffers for ZlibInflater {}

impl<'s, S: Storage + ?Sized> FormatLayer<'s, S> for Vmdk<'s, S> {
    type Buffers = ZlibInflater;

    const STATES: WalkStates = WalkStates { outer: State::WalkDirectory, inner: State::WalkGrains };

    const PARTS: &'static [Part] =
        &[Part::Header, Part::Table, Part::BlockFront, Part::Directory, Part::Metadata];

    const RARE_EVENTS: &'static [Rare] = rare::ALL;

    fn is_probed(first_bytes: &ProbedBytes) -> bool {
        [SPARSE_MAGIC, COWD_MAGIC].iter().any(|magic| first_bytes.starts_with(magic))
            || is_probed(first_bytes)
    }

    fn open(layer: &Layer<'s, S>, observer: &impl Observer) -> Result<(Self, Named), MapError> {
        let vmdk = Self::open_with(layer, &ImageLayout::read(layer.image)?, observer)?;
        let has_parent = vmdk.identity.parent_name.is_some();
        if has_parent {
            observer.rare(rare::PARENT);
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
    fn extent_at(&self, guest: GuestOffset) -> Option<&OpenExtent<'s, S>> {
        self.extents.get(self.extent_index(guest)?)
    }
}

/// The facts about an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentsFacts {
    /// The identity of the image, and the reference to its parent.
    pub identity: Identity,
    /// The size of the disk that a guest sees.
    pub size_bytes: u64,
    /// The type of the disk, as QEMU names it.
    pub create_type: &'static str,
    /// The extents, in the order of the disk.
    pub extents: Vec<ExtentFacts>,
}

/// The facts about an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentFacts {
    /// The number of guest bytes.
    pub length_bytes: u64,
    /// The storage of the guest bytes.
    pub unit: ExtentUnit,
    /// The line of the descriptor. `None` if the image itself is the extent.
    pub line: Option<ExtentLine>,
}

/// The storage of an extent's guest bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentUnit {
    /// The number of guest bytes in a grain; `None` for a flat extent. Some extents of ESX that cannot be read have 0.
    pub grain_bytes: Option<u64>,
    /// Grains are compressed.
    pub is_compressed: bool,
}

/// Returns the facts about an image (QEMU `block/vmdk.c`, `vmdk_get_specific_info`). It does not read the image below.
///
/// # Errors
/// QEMU refuses the image, `layer` lacks the file of an extent, or a read failed.
pub fn extents_facts<S: Storage + ?Sized>(layer: &Layer<'_, S>) -> Result<ExtentsFacts, MapError> {
    let layout = ImageLayout::read(layer.image)?;
    let vmdk = Vmdk::open_with(layer, &layout, &())?;
    let lines = layout.extents().iter().cloned().map(Some).chain(std::iter::repeat(None));
    let extents = vmdk.extents.iter().zip(lines).map(|(extent, line)| ExtentFacts {
        length_bytes: extent.end.saturating_distance_from(extent.start),
        unit: unit_of(&extent.data),
        line,
    });
    let extents: Vec<ExtentFacts> = extents.collect();
    let create_type = match extents.iter().any(|extent| extent.unit.is_compressed) {
        true => "streamOptimized",
        false => layout.create_type(),
    };
    let size_bytes = vmdk.size_bytes();
    Ok(ExtentsFacts { identity: vmdk.identity, size_bytes, create_type, extents })
}

fn unit_of(data: &ExtentData) -> ExtentUnit {
    match data {
        ExtentData::Flat(_) => ExtentUnit { grain_bytes: None, is_compressed: false },
        ExtentData::Sparse(tables) | ExtentData::Indivisible(tables) => ExtentUnit {
            grain_bytes: Some(tables.grain_bytes()),
            is_compressed: tables.is_compressed(),
        },
    }
}
