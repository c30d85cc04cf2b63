//! A second opinion: another implementation that judges the images of a run, after the oracles. A difference between
//! its answers and those of the engine is a violation, even where no oracle knows the right answer.
//!
//! Does not judge images whose bytes change during reads, nor an image with a feature that the engine does not support.

use std::fmt::Debug;
use std::sync::Arc;

use crate::disk::extent::{Extent, Window};
use crate::disk::offsets::GuestOffset;

use super::case::Case;
use super::chain::Chain;
use super::engine::{EngineError, ErrorKind};
use super::meter::Meter;
use super::oracles::collector::Collector;
use super::oracles::{OracleResult, Violation};
use super::tested::TestedEngine;
use super::verdicts::Verdicts;

/// The highest number of steps of a walk whose extents are compared. A longer walk is compared up to there.
const MAX_JUDGED_STEPS: u64 = 1 << 18;

/// An implementation that judges the images of a run, after the oracles.
pub trait SecondOpinion: Debug {
    /// Begins a run. `checksum` is that of the input, and decides which costly comparisons the run makes.
    fn begin_run(&mut self, checksum: u32);

    /// Compares the engine's answers about an image with those of the other implementation. `read` reads the engine's
    /// disk.
    ///
    /// Returns false if the image is not compared, because its files are too large, or it costs too much in this run.
    ///
    /// # Errors
    /// The difference, as a violation.
    fn judge(
        &mut self,
        image: &JudgedImage,
        read: &mut ReadDisk<'_>,
    ) -> Result<bool, Box<Violation>>;

    /// Judges the files that an engine has written and closed.
    ///
    /// Returns false if they are not judged, because they are too large, or it costs too much in this run.
    ///
    /// # Errors
    /// A fault of the files, as a violation.
    fn judge_left(&mut self, files: &Chain) -> Result<bool, Box<Violation>>;
}

/// A function that fills a slice with the bytes that the engine reads from an offset on.
pub type ReadDisk<'r> = dyn FnMut(GuestOffset, &mut [u8]) -> Result<(), EngineError> + 'r;

/// The numbers of images of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComparedImages {
    /// The images that were compared.
    pub compared: usize,
    /// The images that were not compared: they are too large, or their bytes change during reads.
    pub not_compared: usize,
}

/// An image, and the engine's answers about it.
#[derive(Debug)]
pub struct JudgedImage<'a> {
    /// The files.
    pub chain: &'a Chain,
    /// log2 of the guest bytes that one table of the image at the top maps, without the damage.
    pub table_span_bits: u32,
    /// The smallest unit of mapping in any layer, in bytes.
    pub cell_bytes: u64,
    /// Attacks have changed bytes of the files, so that an image may no longer name the files below it.
    pub is_damaged: bool,
    /// The disk; or the error, if the engine does not open the image.
    pub disk: Result<JudgedDisk<'a>, EngineError>,
}

/// The disk that an engine has opened.
#[derive(Clone, Copy, Debug)]
pub struct JudgedDisk<'a> {
    /// The size in bytes.
    pub size_bytes: u64,
    /// The extents of the walk, from the beginning of the disk on.
    pub extents: &'a [Extent],
    /// The end of the walk.
    pub walk: WalkEnd<'a>,
}

/// The end of a walk.
#[derive(Clone, Copy, Debug)]
pub enum WalkEnd<'a> {
    /// The walk came to the end of the disk.
    Complete,
    /// The walk was stopped, or the engine has no answers.
    Stopped,
    /// The engine met an error behind the extents.
    Failed(&'a EngineError),
}

/// The second opinion of a target, with the buffers for the engine's answers.
#[derive(Debug)]
pub(super) struct Opinion {
    second: Box<dyn SecondOpinion>,
    extents: Vec<Extent>,
    meter: Arc<Meter>,
    images: ComparedImages,
}

impl Opinion {
    pub(super) fn new(second: Box<dyn SecondOpinion>) -> Self {
        let (extents, meter, images) = Default::default();
        Self { second, extents, meter, images }
    }

    /// Begins a run of the input with this checksum.
    pub(super) fn begin_run(&mut self, checksum: u32) {
        self.images = ComparedImages::default();
        self.second.begin_run(checksum);
    }

    /// Returns the numbers of images of this run.
    pub(super) fn images(&self) -> ComparedImages {
        self.images
    }

    /// Opens the images of `case` once more, and has the answers judged. `expected` are the extents of the disk, for an
    /// engine that does not report extents.
    pub(super) fn judge(
        &mut self,
        engine: &mut TestedEngine,
        case: &Case,
        expected: Option<&[Extent]>,
        verdicts: &mut Verdicts,
    ) -> OracleResult {
        if case.damage.is_unsteady() {
            self.images.not_compared += 1;
            return Ok(());
        }
        Meter::renew(&mut self.meter);
        self.meter.restart(u64::MAX);
        let chain = &Chain::metered(case.images, &self.meter);
        let judged = self.judge_opened(engine, case, chain, expected);
        let judged = verdicts.judge(judged).map(|compared| compared.unwrap_or(true));
        let judged = verdicts.judge_end(engine.take_end(), judged, true)?;
        self.count(judged);
        Ok(())
    }

    /// Has the files judged that an engine has written and closed.
    pub(super) fn judge_left(&mut self, files: &Chain, verdicts: &mut Verdicts) -> OracleResult {
        let judged = verdicts.judge(self.second.judge_left(files))?;
        self.count(judged.unwrap_or(true));
        Ok(())
    }

    /// Counts an image that was compared, or could not be.
    fn count(&mut self, is_compared: bool) {
        match is_compared {
            true => self.images.compared += 1,
            false => self.images.not_compared += 1,
        }
    }

    fn judge_opened(
        &mut self,
        engine: &mut TestedEngine,
        case: &Case,
        chain: &Chain,
        expected: Option<&[Extent]>,
    ) -> Result<bool, Box<Violation>> {
        let Self { second, extents, .. } = self;
        let Case { table_span_bits, cell_bytes, .. } = *case;
        let is_damaged = !case.damage.touched().is_empty();
        let image = |disk| JudgedImage { chain, table_span_bits, cell_bytes, is_damaged, disk };
        let mut disk = match engine.open(chain) {
            Ok(disk) => disk,
            Err(error) if matches!(error.kind(), ErrorKind::NoAnswer | ErrorKind::Unsupported) => {
                return Ok(false);
            }
            Err(error) => {
                return second.judge(&image(Err(error)), &mut |_, _| Err(EngineError::NoAnswer));
            }
        };
        let size_bytes = disk.virtual_size_bytes();
        let mut collector = Collector::new(extents, MAX_JUDGED_STEPS);
        let walked = disk.map(Window::ALL, &mut collector);
        let is_cut = collector.exhausted();
        let walk = match &walked {
            Ok(()) if !is_cut => WalkEnd::Complete,
            Err(EngineError::NoAnswer) => {
                extents.clear();
                extents.extend(expected.iter().copied().flatten());
                if expected.is_some() { WalkEnd::Complete } else { WalkEnd::Stopped }
            }
            Err(error) if !is_cut => WalkEnd::Failed(error),
            _ => WalkEnd::Stopped,
        };
        let judged = image(Ok(JudgedDisk { size_bytes, extents, walk }));
        second.judge(&judged, &mut |at, into| disk.read(at, into))
    }
}
