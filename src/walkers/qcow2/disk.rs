//! Opens an image, and the images below it.

use crate::formats::qcow2::layout::Layout;
use smallvec::SmallVec;

use crate::disk::image_format::ImageFormat;
use crate::disk::limits::{MAX_FILE_LAYERS, MAX_LAYERS};
use crate::disk::observer::{Event, Observer, Rare, State};
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Layer, Storage};
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::head::{Head, probe};
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::snapshot::SnapshotEntry;
use crate::formats::qcow2::snapshot_table;

use super::latest::LatestEntries;
use crate::formats::qcow2::error::MapError;

/// An open image: its checked header, its storage, and the layers below it. It reports events to `observer`.
///
/// Each qcow2 layer keeps the last L1 entry and the last L2 entry that [`lookup`](super::lookup()) or
/// [`read`](super::read()) has read. So they may miss a change of the file, and threads cannot share a disk.
#[derive(Debug)]
pub struct Disk<'s, S: Storage + ?Sized, O: Observer = ()> {
    top: Qcow2<'s, S>,
    below: SmallVec<[LowerLayer<'s, S>; MAX_LAYERS - 1]>,
    pub(super) observer: O,
}

/// A layer that is a qcow2 image.
#[derive(Debug)]
pub(super) struct Qcow2<'s, S: Storage + ?Sized> {
    pub(super) image: &'s S,
    /// The storage of guest data: the image itself, or its external data file. `None` if the data file is not
    /// available.
    pub(super) data: Option<&'s S>,
    pub(super) header: Header,
    /// The last table entries that were read through `header`. They must be reset when `header` changes.
    pub(super) latest: LatestEntries,
}

/// A layer that holds only guest data.
#[derive(Debug)]
pub(super) struct Raw<'s, S: Storage + ?Sized> {
    pub(super) image: &'s S,
}

/// A layer below the first.
#[derive(Debug)]
enum LowerLayer<'s, S: Storage + ?Sized> {
    Qcow2(Qcow2<'s, S>),
    Raw(Raw<'s, S>),
}

impl<'s, S: Storage + ?Sized> LowerLayer<'s, S> {
    /// Opens a layer. If `format` is `None`, the format is probed.
    fn open(
        layer: &Layer<'s, S>,
        format: Option<ImageFormat>,
        observer: &impl Observer,
    ) -> Result<(Self, Named), MapError> {
        let format = match format {
            Some(format) => format,
            None => probe(layer.image)?,
        };
        if format == ImageFormat::Raw {
            observer.rare(Rare::RawLayer);
            return Ok((Self::Raw(Raw { image: layer.image }), None));
        }
        let (qcow2, named) = Qcow2::open(layer, observer)?;
        match qcow2.data {
            Some(_) => Ok((Self::Qcow2(qcow2), named)),
            None => Err(MapError::Missing("external data file")),
        }
    }
}

/// A layer of a chain.
pub(super) enum LayerRef<'d, 's, S: Storage + ?Sized> {
    Qcow2(&'d Qcow2<'s, S>),
    Raw(&'d Raw<'s, S>),
}

impl<'s, S: Storage + ?Sized> Disk<'s, S> {
    /// Opens the image at the top of `chain`, as [`Disk::open_observed`] does, without an observer.
    ///
    /// # Errors
    /// As for [`Disk::open_observed`].
    pub fn open(chain: &[Layer<'s, S>]) -> Result<Self, MapError> {
        Self::open_observed(chain, ())
    }

    /// Opens only `image`, without the files that it names. Ranges of the backing file are holes. Ranges in an external
    /// data file are mapped, but cannot be read.
    ///
    /// # Errors
    /// As for [`Disk::open`], except for files that the image names.
    pub fn open_alone(image: &'s S) -> Result<Self, MapError> {
        let (top, _) = Qcow2::open(&Layer::alone(image), &())?;
        Ok(Self { top, below: SmallVec::new(), observer: () })
    }
}

impl<'s, S: Storage + ?Sized, O: Observer> Disk<'s, S, O> {
    /// Opens the image at the top of `chain`, with the checks that QEMU makes, and the images below it, each of which
    /// is named by the one above. Layers of `chain` that no image names are ignored.
    ///
    /// # Errors
    /// The image is not qcow2, its header or its snapshot table is malformed, it uses an unsupported feature
    /// (encryption, a backing format other than qcow2 and raw), or it names a file that `chain` lacks.
    pub fn open_observed(chain: &[Layer<'s, S>], observer: O) -> Result<Self, MapError> {
        let (first, rest) = chain.split_first().ok_or(MapError::Missing("image"))?;
        let (top, mut next) = Qcow2::open(first, &observer)?;
        if top.data.is_none() {
            return Err(MapError::Missing("external data file"));
        }
        let mut below = SmallVec::new();
        for depth in 1.. {
            let Some(format) = next.take() else { break };
            let layer = rest.get(below.len()).ok_or(MapError::Missing("backing file"))?;
            // The walk makes one nested call for each layer.
            if below.len() >= MAX_FILE_LAYERS {
                return Err(MapError::TooLarge("too many images in the chain"));
            }
            let opened = LowerLayer::open(layer, format, &observer)
                .map_err(|error| error.below_by(depth))?;
            below.push(opened.0);
            next = opened.1;
        }
        Ok(Self { top, below, observer })
    }

    /// Returns the disk as it was when the snapshot at `index` of the snapshot table was taken, on the current layers
    /// below.
    ///
    /// # Errors
    /// The snapshot does not exist, it is malformed, or a read failed. An L1 table that is too short for the disk is an
    /// error too; QEMU reads the missing part as zeros.
    pub fn into_snapshot(mut self, index: u32) -> Result<Self, MapError> {
        let mut found = Err(MapError::Snapshot { index, what: "there is no such snapshot" });
        let Qcow2 { image, header, .. } = &self.top;
        snapshot_table::each_entry(*image, header, |at_index, at, entry| {
            if at_index == index {
                found = self.top.snapshot_header(index, at, entry);
            }
            Ok(())
        })?;
        self.top.header = found?;
        self.top.latest = LatestEntries::default();
        Ok(self)
    }

    /// Returns the header of the image at the top.
    pub fn header(&self) -> &Header {
        &self.top.header
    }

    /// Returns the number of layers, including the image itself.
    pub fn layers(&self) -> usize {
        1 + self.below.len()
    }

    /// Returns the size of the disk that a guest sees, a multiple of 512.
    pub fn virtual_size_bytes(&self) -> u64 {
        self.top.header.virtual_size_bytes()
    }

    /// Returns the layer at `depth`, 0 for the top.
    #[inline]
    pub(super) fn layer(&self, depth: usize) -> Option<LayerRef<'_, 's, S>> {
        let Some(at) = depth.checked_sub(1) else { return Some(LayerRef::Qcow2(&self.top)) };
        Some(match self.below.get(at)? {
            LowerLayer::Qcow2(layer) => LayerRef::Qcow2(layer),
            LowerLayer::Raw(layer) => LayerRef::Raw(layer),
        })
    }

    /// Returns the size in bytes of the layer below the one at `depth`; `None` if there is none.
    #[inline]
    pub(super) fn size_below(&self, depth: usize) -> Option<u64> {
        Some(match self.below.get(depth)? {
            LowerLayer::Qcow2(layer) => layer.header.virtual_size_bytes(),
            LowerLayer::Raw(layer) => layer.size_bytes(),
        })
    }
}

/// The reference of a layer to the one below: `None` without a backing file, `Some(None)` if the layer does not state
/// the backing file's format.
type Named = Option<Option<ImageFormat>>;

impl<'s, S: Storage + ?Sized> Qcow2<'s, S> {
    fn open(layer: &Layer<'s, S>, observer: &impl Observer) -> Result<(Self, Named), MapError> {
        observer.begin(State::Open);
        let opened = Self::open_layer(layer, observer);
        if opened.is_err() {
            observer.event(State::Open, Event::Failed);
            observer.rare(Rare::OpenFails);
        }
        opened
    }

    fn open_layer(
        layer: &Layer<'s, S>,
        observer: &impl Observer,
    ) -> Result<(Self, Named), MapError> {
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
        snapshot_table::each_entry(layer.image, &header, |_, _, _| {
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
        Ok((Self { image: layer.image, data, header, latest: LatestEntries::default() }, named))
    }

    /// Returns the header that the image would have if the snapshot were its disk.
    fn snapshot_header(
        &self,
        index: u32,
        at: HostOffset,
        entry: &SnapshotEntry,
    ) -> Result<Header, MapError> {
        let geometry = self.geometry();
        let extra = snapshot_table::extra_of(self.image, at, entry)?;
        let size_bytes = extra.disk_bytes.unwrap_or(self.header.virtual_size_bytes());
        let fault = if size_bytes >= 1 << 63 {
            Some("the size of its disk is 2^63 or more")
        } else if u64::from(entry.l1_entries) < geometry.l1_entries_for(size_bytes) {
            Some("the L1 table is too short for the size of its disk")
        } else {
            entry.l1_fault(geometry.cluster_size)
        };
        match fault {
            Some(what) => Err(MapError::Snapshot { index, what }),
            None => {
                let (l1_offset, l1_entries) = (entry.l1_offset, entry.l1_entries);
                Ok(Header { size_bytes, l1_offset, l1_entries, ..self.header.clone() })
            }
        }
    }

    /// Returns the geometry, which decides the meaning of the tables.
    #[inline]
    pub(super) fn geometry(&self) -> &Geometry {
        &self.header.geometry
    }
}

impl<S: Storage + ?Sized> Raw<'_, S> {
    /// Returns the size in bytes. QEMU counts whole sectors (`block.c`, `bdrv_getlength`) and fills the last one with
    /// zeros.
    pub(super) fn size_bytes(&self) -> u64 {
        self.image.length_bytes().checked_next_multiple_of(512).unwrap_or(!511)
    }
}
