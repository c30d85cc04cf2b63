//! The engine: reads as our walker does, and writes with the small writer.

use std::fmt;
use std::rc::Rc;

use qcowfuzz::base::features::Feature;
use qcowfuzz::disk::clusters::ClusterSize;
use qcowfuzz::disk::observer::Observer;
use qcowfuzz::formats::qcow2::geometry::{Compression, Geometry, Version};
use qcowfuzz::harness::engine::questions::QuestionKinds;
use qcowfuzz::harness::{Implementation, Walker};
use qcowfuzz::prelude::*;

use crate::qcow2::{SmallWriter, WriterBuffers};
use crate::{WriteError, WriterFault};

/// Our walker with the small writer. It has the walker's name, because it gives the walker's answers: to every question
/// that does not write.
#[derive(Clone, Default)]
pub struct WritingWalker {
    walker: Walker,
    buffers: WriterBuffers,
    fault: Option<WriterFault>,
}

impl fmt::Debug for WritingWalker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WritingWalker").field("fault", &self.fault).finish_non_exhaustive()
    }
}

impl WritingWalker {
    /// Creates a walker that reports events to `observer`.
    pub fn observed(observer: Rc<dyn Observer>) -> Self {
        Self { walker: Walker::observed(observer), ..Self::default() }
    }

    /// Plants a fault in the writer.
    pub fn with_fault(self, fault: WriterFault) -> Self {
        Self { fault: Some(fault), ..self }
    }
}

/// Returns our walker with the small writer, which may have a fault, as the implementation under test.
pub fn implementation(fault: Option<WriterFault>) -> Implementation {
    Implementation::new(move |observer| {
        Box::new(WritingWalker { fault, ..WritingWalker::observed(Rc::clone(observer)) })
    })
}

impl Engine for WritingWalker {
    fn facts(&self) -> Facts {
        Facts {
            answers: QuestionKinds::ALL,
            write_claims: Some(Claims::QCOW2.no(&[Feature::ExtendedL2])),
            // The small writer reports no events.
            writes: Some(AccessFeedback::Ordered),
            ..self.walker.facts()
        }
    }

    fn begin_run(&mut self) {
        self.walker.begin_run();
        self.buffers.forget();
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        self.walker.open(chain)
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        // The walker checks more of the image than the writer does.
        self.walker.open(chain)?;
        Ok(Box::new(WriterDisk(SmallWriter::open(chain, &mut self.buffers, self.fault)?)))
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        self.walker.open_snapshot(chain, index)
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

/// An image to which the small writer writes. It does not map the disk: the walker knows only the disk that it has
/// opened, and a writer changes it.
struct WriterDisk<'s>(SmallWriter<'s>);

impl OpenDisk for WriterDisk<'_> {
    fn virtual_size_bytes(&mut self) -> u64 {
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
        Ok(done.inspect_err(|_| writer.read_header_again())?)
    }

    fn in_flight(&mut self, flights: Flights<'_>) -> Answer {
        self.0.in_flight(flights)
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
