//! Our own walker and our small writer, the first engine under test.

use std::fmt;
#[cfg(feature = "fuzzer")]
use std::ops::ControlFlow;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::disk::clusters::ClusterSize;
#[cfg(feature = "fuzzer")]
use crate::disk::extent::Extent;
use crate::disk::extent::{Visitor, Window};
use crate::disk::features::Feature;
use crate::disk::limits::MAX_LAYERS;
use crate::disk::observer::Observer;
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Layer;
use crate::formats::qcow2::geometry::{Compression, Geometry, Version};
use crate::walkers;
use crate::walkers::{MapError, WalkScratch};
use crate::writers::{SmallWriter, WriteError, WriterFault};

use super::chain::{Chain, ChainFile, ChainLayer};
use super::claims::Claims;
use super::engine::{
    AccessFeedback, Answer, BitmapChange, Engine, EngineError, Facts, ImageReport, NewImage,
    OpenDisk, Opened, ReportKind, Request,
};
use super::info::ImageInfo;
use super::status::GuestRun;

/// The most steps of a walk for its events.
#[cfg(feature = "fuzzer")]
const MAX_OBSERVED_STEPS: u32 = 1 << 18;

/// Ends a walk after a number of steps.
#[cfg(feature = "fuzzer")]
struct StepLimit(u32);

#[cfg(feature = "fuzzer")]
impl Visitor for StepLimit {
    fn extent(&mut self, _extent: Extent) -> ControlFlow<()> {
        self.step()
    }

    fn step(&mut self) -> ControlFlow<()> {
        let Some(left) = self.0.checked_sub(1) else { return ControlFlow::Break(()) };
        self.0 = left;
        ControlFlow::Continue(())
    }
}

/// Our walker as an engine; it reports events to its observer. It writes qcow2 images with the small writer.
#[derive(Default)]
pub struct Walker {
    scratch: WalkScratch,
    observer: Option<Rc<dyn Observer>>,
    /// The fault of the writer.
    fault: Option<WriterFault>,
}

/// A clone has buffers of its own.
impl Clone for Walker {
    fn clone(&self) -> Self {
        Self { observer: self.observer.clone(), fault: self.fault, ..Self::default() }
    }
}

impl fmt::Debug for Walker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walker").field("fault", &self.fault).finish_non_exhaustive()
    }
}

impl Walker {
    /// Creates a walker that reports events to `observer`.
    pub fn observed(observer: Rc<dyn Observer>) -> Self {
        // Without an observer, the compiler removes the reports from the walk.
        Self { observer: observer.observes().then_some(observer), ..Self::default() }
    }

    /// Plants a fault in the writer.
    pub fn with_fault(self, fault: WriterFault) -> Self {
        Self { fault: Some(fault), ..self }
    }

    /// Walks `chain` for its events, if there is an observer. Its reads do not count.
    #[cfg(feature = "fuzzer")]
    pub(super) fn walk_observed(&mut self, chain: &Chain) {
        if self.observer.is_none() {
            return;
        }
        let chain = &chain.unmetered();
        if let Ok(mut disk) = self.open(chain) {
            let mut steps = StepLimit(MAX_OBSERVED_STEPS);
            let _ = disk.map(Window::ALL, &mut steps);
        }
    }

    /// Opens the image at the top of `chain`, or a snapshot of it, for reading.
    fn readable<'s>(&'s mut self, chain: &'s Chain, snapshot: Option<u32>) -> Opened<'s> {
        let Self { scratch, observer, .. } = self;
        match observer.as_deref() {
            None => readable(chain, snapshot, (), scratch),
            Some(observer) => readable(chain, snapshot, observer, scratch),
        }
    }
}

/// Opens the image at the top of `chain`, or a snapshot of it, for reading.
fn readable<'s, O: Observer + 's>(
    chain: &'s Chain,
    snapshot: Option<u32>,
    observer: O,
    scratch: &'s mut WalkScratch,
) -> Opened<'s> {
    let disk = walkers::Disk::open_observed(chain.format(), &layers(chain), observer)?;
    let disk = match snapshot {
        None => disk,
        Some(index) => disk.into_snapshot(index)?,
    };
    Ok(Box::new(WalkerDisk { chain, disk, scratch }))
}

impl Engine for Walker {
    fn facts(&self) -> Facts {
        let reads = match self.observer {
            // The walker reports events that say more.
            Some(_) => AccessFeedback::None,
            None => AccessFeedback::Ordered,
        };
        Facts {
            claims: Claims::ALL,
            write_claims: Some(Claims::QCOW2.no(&[Feature::ExtendedL2])),
            reads,
            // The small writer reports no events.
            writes: Some(AccessFeedback::Ordered),
            ..Facts::new("map_extents")
        }
    }

    fn begin_run(&mut self) {
        self.scratch.forget();
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        self.readable(chain, None)
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        // The walker checks more of the image than the writer does.
        self.readable(chain, None)?;
        let writer = SmallWriter::open(&layers(chain), &mut self.scratch, self.fault)?;
        Ok(Box::new(WriterDisk(writer)))
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        self.readable(chain, Some(index))
    }

    fn create(&mut self, chain: &Chain, image: &NewImage) -> Answer {
        Ok(SmallWriter::create(chain.image(), &geometry(image)?, image.size_bytes, self.fault)?)
    }
}

/// Returns the geometry of a new image.
fn geometry(image: &NewImage) -> Answer<Geometry> {
    let cluster_size = ClusterSize::from_bits(image.cluster_bits);
    Ok(Geometry {
        version: if image.version == 2 { Version::V2 } else { Version::V3 },
        cluster_size: cluster_size.ok_or_else(|| EngineError::unsupported("the cluster size"))?,
        refcount_order: image.refcount_bits.trailing_zeros(),
        extended_l2: image.extended_l2,
        compression: if image.is_zstd { Compression::Zstd } else { Compression::Deflate },
        data_file: false,
    })
}

/// Returns the layers of `chain` in the form in which our walker takes them.
fn layers(chain: &Chain) -> SmallVec<[Layer<'_, ChainFile>; MAX_LAYERS]> {
    chain.layers().iter().map(ChainLayer::borrowed).collect()
}

/// An image that our walker has opened.
struct WalkerDisk<'s, O: Observer> {
    chain: &'s Chain,
    disk: walkers::Disk<'s, ChainFile, O>,
    scratch: &'s mut WalkScratch,
}

impl<O: Observer> OpenDisk for WalkerDisk<'_, O> {
    fn virtual_size_bytes(&self) -> u64 {
        self.disk.virtual_size_bytes()
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answer {
        Ok(walkers::map_extents(&self.disk, window, self.scratch, visitor)?)
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        let status = walkers::lookup(&self.disk, guest)?.into();
        Ok(GuestRun { length_bytes: 1, status })
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        Ok(walkers::read(&self.disk, guest, into, self.scratch)?)
    }

    fn report(&mut self, about: ReportKind) -> Answer<ImageReport> {
        match about {
            ReportKind::Info => Ok(ImageReport::Info(info(self.chain)?)),
            // The check of qcow2 images is a command, which prints what it finds.
            ReportKind::Check => Err(EngineError::NoAnswer),
        }
    }
}

/// Returns the declarations of the image at the top of `chain`, and the names of the files below it.
fn info(chain: &Chain) -> Answer<ImageInfo> {
    let mut layers = chain.layers().iter();
    let mut declared = |layer: &ChainLayer| walkers::declared(layer.format, &layer.borrowed());
    let Some(top) = layers.next().map(&mut declared).transpose()? else {
        return Err(EngineError::NoAnswer);
    };
    let (mut below, mut name) = (Vec::new(), top.backing_name);
    while !name.is_empty() {
        below.push(name);
        name = match layers.next() {
            Some(layer) => declared(layer)?.backing_name,
            None => Vec::new(),
        };
    }
    Ok(ImageInfo {
        chain: Some(below),
        data_file: Some(top.data_file_name),
        snapshots: Some(top.snapshots),
        bitmaps: Some(top.bitmaps),
    })
}

/// An image to which the small writer writes. It does not map the disk: the walker knows only the disk that it has
/// opened, and a writer changes it.
struct WriterDisk<'s>(SmallWriter<'s, ChainFile>);

impl OpenDisk for WriterDisk<'_> {
    fn virtual_size_bytes(&self) -> u64 {
        self.0.virtual_size_bytes()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        Ok(self.0.read(guest, into)?)
    }

    fn request(&mut self, request: &Request) -> Answer {
        let Self(writer) = self;
        let done = match *request {
            Request::Write { guest, bytes } => writer.write(guest, bytes),
            Request::WriteZeroes { guest, length_bytes } => {
                writer.write_zeroes(guest, length_bytes)
            }
            Request::Discard { guest, length_bytes } => writer.discard(guest, length_bytes),
            Request::Resize { size_bytes } => writer.resize(size_bytes),
            Request::TakeSnapshot => writer.take_snapshot(),
            Request::ApplySnapshot { index } => writer.apply_snapshot(index),
            Request::DeleteSnapshot { index } => writer.delete_snapshot(index),
            Request::ChangeBitmap { index, change } => match change {
                BitmapChange::Add { granularity_bits, is_enabled } => {
                    writer.add_bitmap(granularity_bits, is_enabled)
                }
                BitmapChange::Remove => writer.remove_bitmap(index),
                BitmapChange::Clear => writer.clear_bitmap(index),
                BitmapChange::Enable => writer.enable_bitmap(index, true),
                BitmapChange::Disable => writer.enable_bitmap(index, false),
            },
            Request::Flush => writer.flush(),
        };
        Ok(done?)
    }

    fn close(self: Box<Self>) -> Answer {
        Ok(self.0.close()?)
    }
}

impl From<WriteError> for EngineError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Storage(error) => Self::Storage(error),
            WriteError::Image(error) => error.into(),
            WriteError::Unsupported(_) => Self::Unsupported(Box::new(error)),
            error => Self::Failed(Box::new(error)),
        }
    }
}

impl From<MapError> for EngineError {
    fn from(error: MapError) -> Self {
        // Valid images cause only the first two, in many runs: neither is boxed.
        match error {
            MapError::Storage { error, .. } => Self::Storage(error),
            MapError::PastEnd { guest, virtual_size } => Self::PastEnd { guest, virtual_size },
            error => Self::Failed(Box::new(error)),
        }
    }
}
