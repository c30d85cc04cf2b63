//! Our own walker, the first engine under test, and its reports about an image: its declarations, and the result of a
//! check.

use std::cell::Cell;
use std::fmt;
use std::io::ErrorKind;
#[cfg(feature = "fuzzer")]
use std::ops::ControlFlow;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::base::limits::MAX_LAYERS;
use crate::disk::error::StorageError;
#[cfg(feature = "fuzzer")]
use crate::disk::extent::Extent;
use crate::disk::extent::{Visitor, Window};
use crate::disk::image_format::ImageFormat;
use crate::disk::observer::Observer;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Data, Layer, Storage, Stored};
use crate::harness::engine::claims::Claims;
use crate::harness::engine::questions::QuestionKinds;
use crate::harness::engine::status::GuestRun;
use crate::harness::engine::{
    AccessFeedback, Answer, CheckCounts, Engine, EngineError, Facts, ImageInfo, ImageReport,
    OpenDisk, Opened, ReportKind,
};
use crate::harness::files::chain::{Chain, ChainFile, ChainLayer};
use crate::walkers::{self, CheckBounds, MapError, WalkScratch};

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

/// Our walker as an engine; it reports events to its observer. It reads images and does not write them.
#[derive(Default)]
pub struct Walker {
    scratch: WalkScratch,
    observer: Option<Rc<dyn Observer>>,
}

/// A clone has buffers of its own.
impl Clone for Walker {
    fn clone(&self) -> Self {
        Self { observer: self.observer.clone(), ..Self::default() }
    }
}

impl fmt::Debug for Walker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walker").finish_non_exhaustive()
    }
}

impl Walker {
    /// Creates a walker that reports events to `observer`.
    pub fn observed(observer: Rc<dyn Observer>) -> Self {
        // Without an observer, the compiler removes the reports from the walk.
        Self { observer: observer.observes().then_some(observer), ..Self::default() }
    }

    /// Walks `chain` for its events, if there is an observer. Its reads do not count.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn walk_observed(&mut self, chain: &Chain) {
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
        let Self { scratch, observer } = self;
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
            answers: QuestionKinds::READING,
            reads,
            version: env!("CARGO_PKG_VERSION").into(),
            ..Facts::new("map_extents")
        }
    }

    fn begin_run(&mut self) {
        self.scratch.forget();
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        self.readable(chain, None)
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        self.readable(chain, Some(index))
    }
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
    fn virtual_size_bytes(&mut self) -> u64 {
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
            ReportKind::Info => Ok(ImageReport::Info(image_info(self.chain)?)),
            ReportKind::Check => Ok(ImageReport::Check(check_counts(self.chain)?)),
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

/// The bounds of the check of a qcow2 image: more than an image that a fuzzer's input builds needs.
const CHECK_BOUNDS: CheckBounds = CheckBounds { references: 1 << 18, kept_bytes: 64 << 20 };
/// The largest number of bytes that such a check reads. A damaged image may name a table again and again.
const MAX_CHECKED_BYTES: u64 = 16 << 20;

/// Returns the declarations of the image at the top of `chain`, and the names of the files below it.
fn image_info(chain: &Chain) -> Answer<ImageInfo> {
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

/// Checks the image at the top of `chain`. There is no answer for a format without a check, and for a qcow2 image whose
/// check would take more than the bounds allow.
pub(super) fn check_counts(chain: &Chain) -> Answer<CheckCounts> {
    let Some(top) = chain.layers().first() else { return Err(EngineError::NoAnswer) };
    if top.format == ImageFormat::Qcow2 {
        return check_qcow2(top);
    }
    let mut errors = 0;
    match walkers::check(top.format, &top.borrowed(), &mut |_| errors += 1) {
        None => return Err(EngineError::NoAnswer),
        Some(Ok(())) => {}
        // The check of grains ends at its first fault.
        Some(Err(MapError::Grain { .. })) => errors = 1,
        Some(Err(error)) => return Err(error.into()),
    }
    Ok(CheckCounts { errors, leaks: 0 })
}

fn check_qcow2(layer: &ChainLayer) -> Answer<CheckCounts> {
    let image = BoundedReads::new(&layer.image, MAX_CHECKED_BYTES);
    match walkers::check_qcow2(&image, CHECK_BOUNDS, &mut |_| {}) {
        Ok(checked) => {
            let found = checked.findings;
            // A saturated sum still says that the image is corrupt.
            let errors = found.corruptions.saturating_add(found.check_errors);
            Ok(CheckCounts { errors, leaks: found.leaks })
        }
        Err(MapError::TooLarge(_)) => Err(EngineError::NoAnswer),
        Err(_) if image.is_exhausted() => Err(EngineError::NoAnswer),
        Err(error) => Err(error.into()),
    }
}

/// The number of bytes that a question counts for, beside the bytes that it returns.
const QUESTION_BYTES: u64 = 64;

/// A storage whose reads fail when a number of bytes has been read.
#[derive(Debug)]
struct BoundedReads<'s, S: Storage + ?Sized> {
    storage: &'s S,
    left_bytes: Cell<u64>,
    is_exhausted: Cell<bool>,
}

impl<'s, S: Storage + ?Sized> BoundedReads<'s, S> {
    fn new(storage: &'s S, most_bytes: u64) -> Self {
        Self { storage, left_bytes: Cell::new(most_bytes), is_exhausted: Cell::new(false) }
    }

    /// Reports whether a read has failed because of the bound.
    fn is_exhausted(&self) -> bool {
        self.is_exhausted.get()
    }

    fn count(&self, offset: HostOffset, bytes: usize) -> Result<(), StorageError> {
        let used = QUESTION_BYTES.saturating_add(bytes as u64);
        match self.left_bytes.get().checked_sub(used) {
            Some(left) => {
                self.left_bytes.set(left);
                Ok(())
            }
            None => {
                self.is_exhausted.set(true);
                Err(StorageError { offset, kind: ErrorKind::QuotaExceeded })
            }
        }
    }
}

impl<S: Storage + ?Sized> Storage for BoundedReads<'_, S> {
    fn length_bytes(&self) -> u64 {
        self.storage.length_bytes()
    }

    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        self.count(offset, into.len())?;
        self.storage.read_at(offset, into)
    }

    fn stored(&self, from: HostOffset, until: HostOffset) -> Result<Stored, StorageError> {
        self.count(from, 0)?;
        self.storage.stored(from, until)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.storage.allocated_bytes()
    }

    fn next_data<'a>(
        &'a self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        let data = self.storage.next_data(from, until, scratch)?;
        self.count(from, data.map_or(0, |data| data.bytes.len()))?;
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use crate::formats::qcow2::constants::header;
    use crate::harness::{Harness, Walker};
    use crate::images::files::image::Image;
    use crate::programs::text::assemble;
    use crate::walkers::{Disk, lookup};

    use super::*;

    #[test]
    fn a_snapshot_forgets_the_latest_entries_of_the_active_disk() {
        let program = "image version=3 cluster_bits=16 refcount_order=4 features=none \
                       size=1<<20+0 rng_seed=0 blocks=append table=append tolerance=0\n\
                       write at=start+0 clusters=1\n\
                       snapshot\n\
                       write at=start+0 clusters=1\n";
        let program = assemble(program).unwrap();
        let mut harness = Harness::new(Walker::default());
        let image = harness.build(&program.encode());
        let disk = Disk::open(&[Layer::alone(image)]).unwrap();
        let now = lookup(&disk, GuestOffset::ZERO).unwrap();
        let then = lookup(&disk.into_snapshot(0).unwrap(), GuestOffset::ZERO).unwrap();
        assert!(now.data && then.data);
        assert_ne!(now.offset, then.offset);
    }

    /// The host offset of the qcow2 header field `l1_table_offset`.
    const L1_OFFSET_AT: HostOffset = HostOffset::new(header::L1_TABLE_OFFSET.at as u64);
    /// The number of entries in the L1 table of [`image`].
    const L1_ENTRIES: usize = 1 << 15;

    /// Returns an image of 1 GiB with clusters of 512 bytes, the first of which is written.
    fn image() -> Image {
        let text = "image version=3 cluster_bits=9 refcount_order=4 features=none size=1<<30+0 rng_seed=0 \
                    blocks=append table=append tolerance=0\nwrite at=start+0 clusters=1";
        let mut harness = Harness::new(Walker::default());
        harness.build(&assemble(text).unwrap().encode()).clone()
    }

    fn checked(image: Image) -> Answer<CheckCounts> {
        check_counts(&Chain::alone(image))
    }

    #[test]
    fn a_check_counts_errors_and_leaks() {
        let (mut errors, mut leaks) = (image(), image());
        assert_eq!(checked(image()).unwrap(), CheckCounts::default());
        // A second entry names the first L2 table, which has one reference on disk.
        let l1 = HostOffset::new(errors.number(L1_OFFSET_AT, 8));
        let l2 = errors.number(l1, 8);
        errors.overwrite(l1 + 8, &l2.to_be_bytes());
        assert!(checked(errors).unwrap().errors > 0);
        // The table loses its reference.
        leaks.overwrite(l1, &0u64.to_be_bytes());
        assert_eq!(checked(leaks).unwrap(), CheckCounts { errors: 0, leaks: 2 });
    }

    #[test]
    fn a_table_that_is_named_again_and_again_has_no_answer() {
        let mut image = image();
        let l1 = HostOffset::new(image.number(L1_OFFSET_AT, 8));
        let l2 = image.number(l1, 8).to_be_bytes();
        image.overwrite(l1, &l2.repeat(L1_ENTRIES));
        assert!(matches!(checked(image), Err(EngineError::NoAnswer)));
    }
}
