//! Our own walker and our small writer, the first engine under test.

use smallvec::SmallVec;

use crate::disk::clusters::ClusterSize;
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
use super::engine::{Answer, BitmapChange, Engine, EngineError, NewImage, OpenDisk};
use super::status::GuestRun;

/// Our walker as an engine; it reports events to its observer. It writes qcow2 images with the small writer.
#[derive(Debug)]
pub struct Walker<O: Observer = ()> {
    scratch: WalkScratch,
    observer: O,
    /// The fault of the writer.
    fault: Option<WriterFault>,
}

impl Default for Walker {
    /// Creates a walker without an observer.
    fn default() -> Self {
        Self::observed(())
    }
}

impl<O: Observer> Walker<O> {
    /// Creates a walker that reports events to `observer`.
    pub fn observed(observer: O) -> Self {
        Self { scratch: WalkScratch::default(), observer, fault: None }
    }

    /// Plants a fault in the writer.
    pub fn with_fault(self, fault: WriterFault) -> Self {
        Self { fault: Some(fault), ..self }
    }

    /// Opens the first image of `chain` for reading: the disk that `select` makes of it.
    fn readable<'s>(
        &'s mut self,
        chain: &'s Chain,
        select: impl FnOnce(ReadableDisk<'s, O>) -> Answer<ReadableDisk<'s, O>>,
    ) -> Answer<WalkerDisk<'s, O>> {
        let Self { scratch, observer, .. } = self;
        let disk = walkers::Disk::open_observed(chain.format(), &layers(chain), &*observer)?;
        Ok(WalkerDisk(OpenImage::Read { disk: select(disk)?, scratch }))
    }
}

impl<O: Observer> Engine for Walker<O> {
    type Disk<'s>
        = WalkerDisk<'s, O>
    where
        O: 's;

    fn name(&self) -> &str {
        "map_extents"
    }

    fn accesses_are_feedback(&self) -> bool {
        // With an observer, the walker reports events that say more.
        !O::OBSERVES
    }

    fn written_accesses_are_feedback(&self) -> bool {
        // The small writer reports no events.
        true
    }

    fn claims(&self) -> Claims {
        Claims::ALL
    }

    fn begin_run(&mut self) {
        self.scratch.forget();
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Result<WalkerDisk<'s, O>, EngineError> {
        self.readable(chain, Ok)
    }

    fn write_claims(&self) -> Claims {
        Claims::QCOW2.no(&[Feature::ExtendedL2])
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Answer<WalkerDisk<'s, O>> {
        // The walker checks more of the image than the writer does.
        self.readable(chain, Ok)?;
        let writer = SmallWriter::open(&layers(chain), &mut self.scratch, self.fault)?;
        Ok(WalkerDisk(OpenImage::Written(writer)))
    }

    fn create(&mut self, chain: &Chain, image: &NewImage) -> Answer {
        Ok(SmallWriter::create(chain.image(), &geometry(image)?, image.size_bytes, self.fault)?)
    }

    fn open_snapshot<'s>(
        &'s mut self,
        chain: &'s Chain,
        index: u32,
    ) -> Result<WalkerDisk<'s, O>, EngineError> {
        self.readable(chain, |disk| Ok(disk.into_snapshot(index)?))
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
pub struct WalkerDisk<'s, O: Observer = ()>(OpenImage<'s, O>);

/// A disk that is read.
type ReadableDisk<'s, O> = walkers::Disk<'s, ChainFile, &'s O>;

/// An image that is open for reading or for writing.
#[expect(clippy::large_enum_variant, reason = "one lives at a time, and a box costs an allocation")]
enum OpenImage<'s, O: Observer> {
    Read { disk: ReadableDisk<'s, O>, scratch: &'s mut WalkScratch },
    Written(SmallWriter<'s, ChainFile>),
}

impl<'s, O: Observer> WalkerDisk<'s, O> {
    /// Returns the writer.
    fn writer(&mut self) -> Answer<&mut SmallWriter<'s, ChainFile>> {
        match &mut self.0 {
            OpenImage::Read { .. } => Err(EngineError::NotAsked),
            OpenImage::Written(writer) => Ok(writer),
        }
    }
}

impl<O: Observer> OpenDisk for WalkerDisk<'_, O> {
    fn virtual_size_bytes(&self) -> u64 {
        match &self.0 {
            OpenImage::Read { disk, .. } => disk.virtual_size_bytes(),
            OpenImage::Written(writer) => writer.virtual_size_bytes(),
        }
    }

    // The walker knows only the disk that it has opened, and a writer changes it.
    fn map(&mut self, window: Window, visitor: &mut impl Visitor) -> Result<(), EngineError> {
        match &mut self.0 {
            OpenImage::Read { disk, scratch } => {
                Ok(walkers::map_extents(disk, window, scratch, visitor)?)
            }
            OpenImage::Written(_) => Err(EngineError::NotAsked),
        }
    }

    fn status(&mut self, guest: GuestOffset) -> Result<GuestRun, EngineError> {
        match &self.0 {
            OpenImage::Read { disk, .. } => {
                let status = walkers::lookup(disk, guest)?.into();
                Ok(GuestRun { length_bytes: 1, status })
            }
            OpenImage::Written(_) => Err(EngineError::NotAsked),
        }
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Result<(), EngineError> {
        match &mut self.0 {
            OpenImage::Read { disk, scratch } => Ok(walkers::read(disk, guest, into, scratch)?),
            OpenImage::Written(writer) => Ok(writer.read(guest, into)?),
        }
    }

    fn write(&mut self, guest: GuestOffset, bytes: &[u8]) -> Answer {
        Ok(self.writer()?.write(guest, bytes)?)
    }

    fn write_zeroes(&mut self, guest: GuestOffset, length_bytes: u64) -> Answer {
        Ok(self.writer()?.write_zeroes(guest, length_bytes)?)
    }

    fn discard(&mut self, guest: GuestOffset, length_bytes: u64) -> Answer {
        Ok(self.writer()?.discard(guest, length_bytes)?)
    }

    fn resize(&mut self, size_bytes: u64) -> Answer {
        Ok(self.writer()?.resize(size_bytes)?)
    }

    fn take_snapshot(&mut self) -> Answer {
        Ok(self.writer()?.take_snapshot()?)
    }

    fn apply_snapshot(&mut self, index: u32) -> Answer {
        Ok(self.writer()?.apply_snapshot(index)?)
    }

    fn delete_snapshot(&mut self, index: u32) -> Answer {
        Ok(self.writer()?.delete_snapshot(index)?)
    }

    fn change_bitmap(&mut self, index: u32, change: BitmapChange) -> Answer {
        let writer = self.writer()?;
        let done = match change {
            BitmapChange::Add { granularity_bits, is_enabled } => {
                writer.add_bitmap(granularity_bits, is_enabled)
            }
            BitmapChange::Remove => writer.remove_bitmap(index),
            BitmapChange::Clear => writer.clear_bitmap(index),
            BitmapChange::Enable => writer.enable_bitmap(index, true),
            BitmapChange::Disable => writer.enable_bitmap(index, false),
        };
        Ok(done?)
    }

    fn flush(&mut self) -> Answer {
        Ok(self.writer()?.flush()?)
    }

    fn close(self) -> Answer {
        match self.0 {
            OpenImage::Read { .. } => Ok(()),
            OpenImage::Written(writer) => Ok(writer.close()?),
        }
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
