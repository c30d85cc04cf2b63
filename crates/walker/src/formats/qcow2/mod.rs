//! The qcow2 format: the meaning of each field of an image. The facts come from the public specification (QEMU
//! `docs/interop/qcow2.rst`) and, where it is silent, from the behaviour of qemu-img.

pub mod anatomy;
pub mod bitmap;
pub mod check;
pub mod constants;
pub mod entry;
pub mod geometry;
pub mod head;
pub mod header;
mod layer;
pub mod snapshot;
pub mod table;

use crate::disk::extent::Mapping;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::{Layer, Storage};
use crate::formats::anatomy::{Anatomy, Part};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{
    Cover, Declared, FormatLayer, Named, ProbedBytes, TablePieces, WalkStates,
};
use crate::formats::qcow2::constants::MAGIC;
use crate::formats::qcow2::entry::{ClusterKind, Layout};
use crate::formats::qcow2::head::{Field, Head};
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::snapshot::SnapshotEntry;

pub(crate) use layer::Qcow2;
use layer::inflate::Inflater;
use layer::walk::Walk;
use layer::{LatestEntries, checked_kind, l2_entry, mapping_at};

impl<'s, S: Storage + ?Sized> FormatLayer<'s, S> for Qcow2<'s, S> {
    type Buffers = Inflater;

    const STATES: WalkStates = WalkStates { outer: State::WalkL1, inner: State::WalkL2 };

    const PARTS: &'static [Part] = Part::ALL.split_at(Part::OF_QCOW2).0;

    fn is_probed(first_bytes: &ProbedBytes) -> bool {
        let [a, b, c, d, e, f, g, h, ..] = *first_bytes;
        u32::from_be_bytes([a, b, c, d]) == MAGIC && u32::from_be_bytes([e, f, g, h]) >= 2
    }

    fn open(layer: &Layer<'s, S>, observer: &impl Observer) -> Result<(Self, Named), MapError> {
        let head = Head::read(layer.image)?;
        observer.event(State::Open, Event::Header);
        if head.bitmaps.is_some() {
            observer.event(State::Open, Event::Bitmap);
        }
        let named = match head.backing_name {
            None => None,
            Some(_) => {
                observer.event(State::Open, Event::Backing);
                Some(head.backing_format_in(layer.image)?)
            }
        };
        let header = head.header;
        snapshot::each_entry(layer.image, &header, |_, _, _| {
            observer.event(State::Open, Event::Snapshot);
            Ok(())
        })?;
        let data = match header.geometry.data_file {
            false => Some(layer.image),
            true => {
                observer.event(State::Open, Event::DataFile);
                layer.data_file
            }
        };
        let (image, latest) = (layer.image, LatestEntries::default());
        Ok((Self { image, data, header, has_host_holes: false, latest }, named))
    }

    fn declared(layer: &Layer<'s, S>) -> Result<Declared, MapError> {
        let head = Head::read(layer.image)?;
        let data_file = head.data_file.filter(|_| head.header.geometry.data_file);
        // Without a field, the name is empty.
        let name =
            |field: Option<Field>| field.map_or(Ok(Vec::new()), |field| field.name_in(layer.image));
        Ok(Declared {
            backing_name: name(head.backing_name)?,
            data_file_name: name(data_file)?,
            snapshots: count(head.header.snapshots),
            bitmaps: head.bitmaps.map_or(0, |extension| count(extension.bitmaps)),
        })
    }

    fn take_apart(anatomy: &mut Anatomy, image: &S) -> Result<(), MapError> {
        anatomy.read_qcow2(image)
    }

    fn missing_file(&self) -> Option<&'static str> {
        self.data.is_none().then_some("external data file")
    }

    #[inline]
    fn size_bytes(&self) -> u64 {
        self.header.virtual_size_bytes()
    }

    fn block_bytes(&self) -> Option<u64> {
        Some(self.header.geometry.cluster_size.bytes())
    }

    /// The end of a disk inside a cluster is no event of a walk.
    fn is_cut_at(&self, _end: GuestOffset) -> bool {
        false
    }

    fn walk(&self, pieces: &mut TablePieces, cover: &mut impl Cover) -> Flow {
        cover.observer().begin(State::WalkL1);
        cover.observer().begin(State::WalkL2);
        Walk { layer: self, cover }.l1(&mut pieces.first, &mut pieces.second)
    }

    fn lookup(&self, guest: GuestOffset) -> Result<Mapping, MapError> {
        let Some((entry, bitmap)) = l2_entry(self, guest)? else { return Ok(Mapping::HOLE) };
        let kind = checked_kind(entry, self.geometry(), guest)?;
        mapping_at(kind, bitmap, self.geometry(), guest)
    }

    /// Returns the number of bytes up to the end of the cell.
    #[inline]
    fn piece_bytes(&self, guest: GuestOffset) -> u64 {
        let cell = self.geometry().cell_bytes();
        cell - (guest.get() & (cell - 1))
    }

    fn read_piece(
        &self,
        guest: GuestOffset,
        into: &mut [u8],
        inflater: &mut Inflater,
    ) -> Result<bool, MapError> {
        let Some((entry, bitmap)) = l2_entry(self, guest)? else { return Ok(false) };
        let geometry = self.geometry();
        let mapping = match checked_kind(entry, geometry, guest)? {
            ClusterKind::Compressed(run) => {
                let first = geometry.cluster_size.cluster_start(guest);
                let inside = geometry.cluster_size.inside(guest);
                let end = inside as usize + into.len();
                let content = inflater
                    .inflate(self.image, geometry, run, end)
                    .map_err(|error| error.at(first))?;
                into.copy_from_slice(&content[inside as usize..]);
                return Ok(true);
            }
            kind => mapping_at(kind, bitmap, geometry, guest)?,
        };
        match mapping.offset.filter(|_| mapping.data) {
            Some(host) => {
                self.data.ok_or(MapError::Missing("external data file"))?.read_at(host, into)?;
            }
            None if mapping.present => into.fill(0),
            None => {}
        }
        Ok(mapping.present)
    }

    fn decide_host_holes(&mut self) {
        self.look_for_host_holes();
    }

    fn file_with_holes(&self, _guest: GuestOffset) -> Option<&'s S> {
        self.data.filter(|_| self.has_host_holes)
    }

    fn go_to_snapshot(&mut self, index: u32) -> Result<(), MapError> {
        self.change_header(index, |layer, at, entry| layer.snapshot_header(index, at, entry))
    }

    /// If the L1 table of the snapshot is too short for the size of the disk, the rest of the disk is unallocated.
    fn use_table_of_snapshot(&mut self, index: u32) -> Result<(), MapError> {
        self.change_header(index, |layer, _, entry| {
            let SnapshotEntry { l1_offset, l1_entries, .. } = *entry;
            match entry.l1_fault(layer.geometry().cluster_size) {
                Some(what) => Err(MapError::Snapshot { index, what }),
                None => Ok(Header { l1_offset, l1_entries, ..layer.header.clone() }),
            }
        })
    }
}

/// Returns a number of the header. The largest one stands for those that do not fit, which no reader could count.
fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
