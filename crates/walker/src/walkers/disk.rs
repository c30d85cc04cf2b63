//! Opens an image, and the images below it; and the buffers of their walks.

use smallvec::SmallVec;

use crate::disk::image_format::ImageFormat;
use crate::disk::limits::MAX_FILE_LAYERS;
use crate::disk::observer::{Event, Observer, Rare, State};
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::{Layer, Storage};
use crate::formats::error::MapError;
use crate::formats::qcow2::header::Header;
use crate::formats::{Buffers, Named, OpenLayer, TablePieces, probe};

/// The number of layers of which a chain consists without an allocation.
const INLINE_LAYERS: usize = 4;
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

/// Opens a layer, and returns its reference to the one below. If `format` is `None`, the format is probed.
fn open_layer<'s, S: Storage + ?Sized>(
    layer: &Layer<'s, S>,
    format: Option<ImageFormat>,
    observer: &impl Observer,
) -> Result<(OpenLayer<'s, S>, Named), MapError> {
    let format = match format {
        Some(format) => format,
        None => probe(layer.image)?,
    };
    observer.begin(State::Open);
    let opened = OpenLayer::open(layer, format, observer);
    if let Err(error) = &opened {
        observer.event(State::Open, Event::Failed);
        if error.is_of_image() {
            observer.rare(Rare::OpenFails);
        }
    }
    opened
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
        let (top, _) = open_layer(&Layer::alone(image), Some(format), &())?;
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
        let (top, _) = open_layer(layer, Some(format), &())?;
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
        let (top, mut next) = open_layer(first, Some(format), &observer)?;
        let top = top.complete()?;
        let mut below = SmallVec::new();
        for depth in 1.. {
            let Some(format) = next.take() else { break };
            let layer = rest.get(below.len()).ok_or(MapError::Missing("backing file"))?;
            // The walk makes one nested call for each layer.
            if below.len() >= MAX_FILE_LAYERS {
                return Err(MapError::TooLarge("too many images in the chain"));
            }
            let opened = open_layer(layer, format, &observer)
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
        self.top.go_to_snapshot(index)?;
        Ok(self)
    }

    /// Returns the disk with the clusters of the snapshot at `index` of the snapshot table, and with its present size,
    /// as qemu-img opens a snapshot (QEMU `block/qcow2-snapshot.c`, `qcow2_snapshot_load_tmp`). If the L1 table of the
    /// snapshot is too short for that size, the rest of the disk is unallocated.
    ///
    /// # Errors
    /// The snapshot does not exist, its L1 table is malformed, or a read failed.
    pub fn with_table_of_snapshot(mut self, index: u32) -> Result<Self, MapError> {
        self.top.use_table_of_snapshot(index)?;
        Ok(self)
    }

    /// Returns the disk with the answers of QEMU's drivers for layers about which these report less than the images
    /// state: walks and look-ups report every byte of such a layer as data without a host offset, and do not read its
    /// block allocation table. [`read`](super::read()) is not affected.
    pub fn as_qemu_reports(mut self) -> Self {
        self.layers_mut().for_each(OpenLayer::report_as_qemu);
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
        self.top.block_bytes()
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
    /// that layer has extents. The order is that of [`Layer::extents`].
    pub fn extent_index(&self, depth: u32, guest: GuestOffset) -> Option<usize> {
        self.layer(usize::try_from(depth).ok()?)?.extent_index(guest)
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

/// The buffers of a walk, which can be reused from walk to walk.
#[derive(Debug, Default)]
pub struct WalkScratch {
    layers: Vec<TablePieces>,
    pub(super) buffers: Buffers,
}

impl WalkScratch {
    /// Creates empty buffers. They grow with the layers of the disks that are walked, and with the compressed clusters
    /// that are read.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the last compressed clusters that were read. No answer depends on them; inflating them again only takes
    /// time. A fuzzer calls this between inputs, so that the coverage of a run depends on its input alone.
    pub fn forget(&mut self) {
        self.buffers.forget();
    }

    pub(super) fn for_layers(&mut self, count: usize) -> &mut [TablePieces] {
        if self.layers.len() < count {
            self.layers.resize_with(count, TablePieces::default);
        }
        &mut self.layers
    }
}
