//! Our own walker, the first engine under test.

mod bounded_reads;
mod report;

use std::fmt;
#[cfg(feature = "fuzzer")]
use std::ops::ControlFlow;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::base::limits::MAX_LAYERS;
#[cfg(feature = "fuzzer")]
use crate::disk::extent::Extent;
use crate::disk::extent::{Visitor, Window};
use crate::disk::observer::Observer;
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Layer;
use crate::harness::engine::claims::Claims;
use crate::harness::engine::questions::QuestionKinds;
use crate::harness::engine::status::GuestRun;
use crate::harness::engine::{
    AccessFeedback, Answer, Engine, EngineError, Facts, ImageReport, OpenDisk, Opened, ReportKind,
};
use crate::harness::files::chain::{Chain, ChainFile, ChainLayer};
use crate::walkers;
use crate::walkers::{MapError, WalkScratch};

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
            ReportKind::Info => Ok(ImageReport::Info(report::info(self.chain)?)),
            ReportKind::Check => Ok(ImageReport::Check(report::check(self.chain)?)),
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

#[cfg(test)]
mod tests {
    use super::Walker;
    use crate::disk::offsets::GuestOffset;
    use crate::disk::storage::Layer;
    use crate::harness::Harness;
    use crate::programs::text;
    use crate::walkers::{Disk, lookup};

    #[test]
    fn a_snapshot_forgets_the_latest_entries_of_the_active_disk() {
        let program = "image version=3 cluster_bits=16 refcount_order=4 features=none \
                       size=1<<20+0 rng_seed=0 blocks=append table=append tolerance=0\n\
                       write at=start+0 clusters=1\n\
                       snapshot\n\
                       write at=start+0 clusters=1\n";
        let program = text::assemble(program).unwrap();
        let mut harness = Harness::new(Walker::default());
        let image = harness.build(&program.encode());
        let disk = Disk::open(&[Layer::alone(image)]).unwrap();
        let now = lookup(&disk, GuestOffset::ZERO).unwrap();
        let then = lookup(&disk.into_snapshot(0).unwrap(), GuestOffset::ZERO).unwrap();
        assert!(now.data && then.data);
        assert_ne!(now.offset, then.offset);
    }
}
