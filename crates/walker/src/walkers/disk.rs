//! Opens an image, and the images below it.

use smallvec::SmallVec;

use crate::disk::image_format::ImageFormat;
use crate::disk::limits::MAX_FILE_LAYERS;
use crate::disk::observer::{Event, Observer, Rare, State};
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::{Layer, Storage};
use crate::formats::error::MapError;
use crate::formats::probe::probe;
use crate::formats::qcow2::header::Header;

use super::qcow2::{Named, Qcow2};
use super::raw::Raw;
use super::vhdx::Vhdx;
use super::vmdk::Vmdk;
use super::vpc::Vpc;

/// The number of layers of which a chain consists without an allocation.
const INLINE_LAYERS: usize = 4;
/// The fault of a question about a snapshot of an image that is not a qcow2 image.
const NO_SNAPSHOTS: &str = "the format has no snapshots";

/// An open image: its checked header, its storage, and the layers below it. It reports events to `observer`.
///
/// Each qcow2 layer keeps the last L1 entry and the last L2 entry that [`lookup`](super::lookup()) or
/// [`read`](super::read()) has read. So they may miss a change of the file, and threads cannot share a disk.
#[derive(Debug)]
pub struct Disk<'s, S: Storage + ?Sized, O: Observer = ()> {
    top: OpenLayer<'s, S>,
    below: SmallVec<[OpenLayer<'s, S>; INLINE_LAYERS - 1]>,
    pub(super) observer: O,
    /// See [`Disk::with_host_holes`].
    pub(super) host_holes: bool,
}

/// The states in which the walker reads a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WalkStates {
    /// The state while it reads the table that names other tables; in a format with one table, that table.
    pub(super) outer: State,
    /// The state while it reads the entries that name data.
    pub(super) inner: State,
}

impl WalkStates {
    /// Calls `report` with each state once.
    pub(super) fn each(self, mut report: impl FnMut(State)) {
        report(self.outer);
        if self.inner != self.outer {
            report(self.inner);
        }
    }
}

/// A layer of a chain.
#[derive(Debug)]
pub(super) enum OpenLayer<'s, S: Storage + ?Sized> {
    Qcow2(Qcow2<'s, S>),
    Raw(Raw<'s, S>),
    Vpc(Vpc<'s, S>),
    Vhdx(Vhdx<'s, S>),
    Vmdk(Vmdk<'s, S>),
}

impl<'s, S: Storage + ?Sized> OpenLayer<'s, S> {
    /// Opens a layer, and returns its reference to the one below. If `format` is `None`, the format is probed.
    fn open(
        layer: &Layer<'s, S>,
        format: Option<ImageFormat>,
        observer: &impl Observer,
    ) -> Result<(Self, Named), MapError> {
        let format = match format {
            Some(format) => format,
            None => probe(layer.image)?,
        };
        observer.begin(State::Open);
        let opened = Self::open_as(layer, format, observer);
        if let Err(error) = &opened {
            observer.event(State::Open, Event::Failed);
            if error.is_of_image() {
                observer.rare(Rare::OpenFails);
            }
        }
        opened
    }

    fn open_as(
        layer: &Layer<'s, S>,
        format: ImageFormat,
        observer: &impl Observer,
    ) -> Result<(Self, Named), MapError> {
        match format {
            ImageFormat::Qcow2 => {
                let (qcow2, named) = Qcow2::open(layer, observer)?;
                Ok((Self::Qcow2(qcow2), named))
            }
            ImageFormat::Raw => Ok((Self::Raw(Raw { image: layer.image }), None)),
            ImageFormat::Vpc => Ok((Self::Vpc(Vpc::open(layer.image, observer)?), None)),
            ImageFormat::Vhdx => Ok((Self::Vhdx(Vhdx::open(layer.image, observer)?), None)),
            ImageFormat::Vmdk => {
                let (vmdk, has_parent) = Vmdk::open(layer, observer)?;
                Ok((Self::Vmdk(vmdk), has_parent.then_some(Some(ImageFormat::Vmdk))))
            }
        }
    }

    /// Returns the states in which the walker reads the layer.
    #[inline]
    pub(super) fn walk_states(&self) -> WalkStates {
        let (outer, inner) = match self {
            Self::Qcow2(_) | Self::Raw(_) => (State::WalkL1, State::WalkL2),
            Self::Vpc(_) => (State::WalkVhd, State::WalkVhd),
            Self::Vhdx(_) => (State::WalkVhdx, State::WalkVhdx),
            Self::Vmdk(_) => (State::WalkDirectory, State::WalkGrains),
        };
        WalkStates { outer, inner }
    }

    /// Reports whether the disk ends at `end`, inside a block or a grain. It is always false for qcow2.
    pub(super) fn is_cut_at(&self, end: GuestOffset) -> bool {
        let is_inside_block = match self {
            Self::Qcow2(_) | Self::Raw(_) => false,
            Self::Vpc(layer) => layer.blocks.is_some_and(|header| {
                let block = u64::from(header.block_bytes);
                !end.get().is_multiple_of(block)
            }),
            Self::Vhdx(layer) => !end.get().is_multiple_of(layer.table.block_bytes.into()),
            Self::Vmdk(layer) => layer.is_inside_last_grain(end),
        };
        is_inside_block && end.get() == self.size_bytes()
    }

    /// Rejects a layer without a file that its image names.
    fn complete(self) -> Result<Self, MapError> {
        match &self {
            Self::Qcow2(Qcow2 { data: None, .. }) => Err(MapError::Missing("external data file")),
            _ => Ok(self),
        }
    }

    /// Returns the size in bytes, a multiple of 512.
    #[inline]
    pub(super) fn size_bytes(&self) -> u64 {
        match self {
            Self::Qcow2(layer) => layer.header.virtual_size_bytes(),
            Self::Raw(layer) => layer.size_bytes(),
            Self::Vpc(layer) => layer.size_bytes(),
            Self::Vhdx(layer) => layer.size_bytes(),
            Self::Vmdk(layer) => layer.size_bytes(),
        }
    }
}

impl<'s, S: Storage + ?Sized> Disk<'s, S> {
    /// Opens the qcow2 image at the top of `chain`, as [`Disk::open_observed`] does, without an observer.
    ///
    /// # Errors
    /// As for [`Disk::open_observed`].
    pub fn open(chain: &[Layer<'s, S>]) -> Result<Self, MapError> {
        Self::open_as(ImageFormat::Qcow2, chain)
    }

    /// Opens the image at the top of `chain`, which is of `format`. [`Disk::open_observed`] has an observer, too.
    ///
    /// # Errors
    /// As for [`Disk::open_observed`].
    pub fn open_as(format: ImageFormat, chain: &[Layer<'s, S>]) -> Result<Self, MapError> {
        Self::open_observed(format, chain, ())
    }

    /// Opens only `image`, which is of `format`, without the files that it names. Ranges of the backing file are holes.
    /// Ranges in an external data file are mapped, but cannot be read.
    ///
    /// # Errors
    /// As for [`Disk::open`], except for files that the image names.
    pub fn open_alone(format: ImageFormat, image: &'s S) -> Result<Self, MapError> {
        let (top, _) = OpenLayer::open(&Layer::alone(image), Some(format), &())?;
        Ok(Self { top, below: SmallVec::new(), observer: (), host_holes: false })
    }

    /// Checks that the image of `layer`, which is of `format`, can be opened without the images below it.
    ///
    /// # Errors
    /// As for [`Disk::open`], except for the image below.
    pub(in crate::walkers) fn check_layer(
        format: ImageFormat,
        layer: &Layer<'s, S>,
    ) -> Result<(), MapError> {
        let (top, _) = OpenLayer::open(layer, Some(format), &())?;
        top.complete().map(|_| ())
    }
}

impl<'s, S: Storage + ?Sized, O: Observer> Disk<'s, S, O> {
    /// Opens the image at the top of `chain`, which is of `format`, with the checks that QEMU makes, and the images
    /// below it, each of which is named by the one above. Layers of `chain` that no image names are ignored.
    ///
    /// # Errors
    /// The image is of another format, its header or its snapshot table is malformed, it uses an unsupported feature
    /// (encryption, a backing file of a format that is not one of [`ImageFormat`]), or it names a file that `chain`
    /// lacks.
    pub fn open_observed(
        format: ImageFormat,
        chain: &[Layer<'s, S>],
        observer: O,
    ) -> Result<Self, MapError> {
        let (first, rest) = chain.split_first().ok_or(MapError::Missing("image"))?;
        let (top, mut next) = OpenLayer::open(first, Some(format), &observer)?;
        let top = top.complete()?;
        let mut below = SmallVec::new();
        for depth in 1.. {
            let Some(format) = next.take() else { break };
            let layer = rest.get(below.len()).ok_or(MapError::Missing("backing file"))?;
            // The walk makes one nested call for each layer.
            if below.len() >= MAX_FILE_LAYERS {
                return Err(MapError::TooLarge("too many images in the chain"));
            }
            let opened = OpenLayer::open(layer, format, &observer)
                .and_then(|(layer, named)| Ok((layer.complete()?, named)));
            let (layer, named) = opened.map_err(|error| error.below_by(depth))?;
            if let OpenLayer::Raw(_) = layer {
                observer.rare(Rare::RawLayer);
            }
            below.push(layer);
            next = named;
        }
        Ok(Self { top, below, observer, host_holes: false })
    }

    /// Returns the disk as it was when the snapshot at `index` of the snapshot table was taken, on the current layers
    /// below.
    ///
    /// # Errors
    /// The snapshot does not exist, it is malformed, or a read failed. An L1 table that is too short for the disk is an
    /// error too; QEMU reads the missing part as zeros.
    pub fn into_snapshot(mut self, index: u32) -> Result<Self, MapError> {
        match &mut self.top {
            OpenLayer::Qcow2(top) => top.go_to_snapshot(index)?,
            _ => return Err(MapError::Snapshot { index, what: NO_SNAPSHOTS }),
        }
        Ok(self)
    }

    /// Returns the disk with the clusters of the snapshot at `index` of the snapshot table, and with its present size,
    /// as qemu-img opens a snapshot (QEMU `block/qcow2-snapshot.c`, `qcow2_snapshot_load_tmp`). If the L1 table of the
    /// snapshot is too short for that size, the rest of the disk is unallocated.
    ///
    /// # Errors
    /// The snapshot does not exist, its L1 table is malformed, or a read failed.
    pub fn with_table_of_snapshot(mut self, index: u32) -> Result<Self, MapError> {
        match &mut self.top {
            OpenLayer::Qcow2(top) => top.use_table_of_snapshot(index)?,
            _ => return Err(MapError::Snapshot { index, what: NO_SNAPSHOTS }),
        }
        Ok(self)
    }

    /// Returns the disk with another answer for VHDX layers: walks and look-ups report every byte of such a layer as
    /// data without a host offset, and do not read its block allocation table. `qemu-img map` prints the same, because
    /// QEMU's driver for VHDX does not report the state of blocks. [`read`](super::read()) is not affected.
    pub fn with_vhdx_as_data(mut self) -> Self {
        for layer in self.layers_mut() {
            if let OpenLayer::Vhdx(layer) = layer {
                layer.reports_blocks = false;
            }
        }
        self
    }

    /// Returns the header of the image at the top, if that is a qcow2 image.
    pub fn header(&self) -> Option<&Header> {
        match &self.top {
            OpenLayer::Qcow2(top) => Some(&top.header),
            _ => None,
        }
    }

    /// Returns the unit in which the image at the top stores data, in bytes: a cluster or a block. `None` if every
    /// byte lies at its guest offset, or if its extents have units of their own.
    pub fn block_bytes(&self) -> Option<u64> {
        match &self.top {
            OpenLayer::Qcow2(layer) => Some(layer.header.geometry.cluster_size.bytes()),
            OpenLayer::Raw(_) | OpenLayer::Vmdk(_) => None,
            OpenLayer::Vpc(layer) => layer.blocks.as_ref().map(|header| header.block_bytes.into()),
            OpenLayer::Vhdx(layer) => Some(layer.table.block_bytes.into()),
        }
    }

    /// Returns the number of layers, including the image itself.
    pub fn layers(&self) -> usize {
        1 + self.below.len()
    }

    /// Returns the size of the disk that a guest sees, a multiple of 512.
    pub fn virtual_size_bytes(&self) -> u64 {
        self.top.size_bytes()
    }

    /// Returns the number of the extent that holds a guest byte in the layer at `depth`, counted from 0; `None` unless
    /// that layer is a VMDK image. The order is that of [`Layer::extents`].
    pub fn extent_index(&self, depth: u32, guest: GuestOffset) -> Option<usize> {
        match self.layer(usize::try_from(depth).ok()?)? {
            OpenLayer::Vmdk(layer) => layer.index_at(guest),
            _ => None,
        }
    }

    /// Returns the layer at the top.
    pub(super) fn top(&self) -> &OpenLayer<'s, S> {
        &self.top
    }

    /// Returns the layer at `depth`, 0 for the top.
    #[inline]
    pub(super) fn layer(&self, depth: usize) -> Option<&OpenLayer<'s, S>> {
        match depth.checked_sub(1) {
            None => Some(&self.top),
            Some(at) => self.below.get(at),
        }
    }

    /// Returns all layers.
    pub(super) fn layers_mut(&mut self) -> impl Iterator<Item = &mut OpenLayer<'s, S>> {
        [&mut self.top].into_iter().chain(&mut self.below)
    }

    /// Returns the size in bytes of the layer below the one at `depth`; `None` if there is none.
    #[inline]
    pub(super) fn size_below(&self, depth: usize) -> Option<u64> {
        self.below.get(depth).map(OpenLayer::size_bytes)
    }
}
