//! A second opinion: another implementation that judges the images of a run, after the oracles. A difference between
//! its answers and those of the engine is a violation, even where no oracle knows the right answer. If nothing is known
//! about the content of a file, each side may refuse it, or give up: only their answers are compared.
//!
//! Does not judge images whose bytes change during reads, nor an image with a feature that a side does not support.

use std::fmt::Debug;

use crate::disk::extent::{Extent, Window};
use crate::disk::offsets::GuestOffset;

use crate::base::features::FeatureSet;
use crate::formats::qcow2::header::Header;
use crate::harness::cases::case::{Case, Verdicts};
use crate::harness::engine::claims::SizePolicy;
use crate::harness::engine::questions::QuestionKinds;
use crate::harness::engine::tested::{TestedDisk, TestedEngine};
use crate::harness::engine::{Answer, EngineError, ErrorKind};
use crate::harness::files::chain::Chain;
use crate::harness::oracles::bounds::Collector;
use crate::harness::oracles::{OracleResult, SetAside};

/// The beginning of the fingerprints of differences from QEMU.
pub const OF_QEMU: &str = "qemu";
/// The beginning of the fingerprints of differences from any other second implementation.
pub const OF_ENGINE: &str = "against";

/// The highest number of steps of a walk whose extents are compared. A longer walk is compared up to there.
const MAX_JUDGED_STEPS: u64 = 1 << 18;

/// An implementation that judges the images of a run, after the oracles.
pub trait SecondOpinion: Debug {
    /// Begins a run. `checksum` is that of the input, and decides which costly comparisons the run makes.
    fn begin_run(&mut self, checksum: u32);

    /// Compares the engine's answers about an image with those of the other implementation. `disk` is the disk that the
    /// engine has opened, if it has.
    ///
    /// Returns false if the image is not compared, because its files are too large, it costs too much in this run, or
    /// the other implementation does not claim to read it.
    ///
    /// # Errors
    /// The first difference that is not set aside, as a violation.
    fn judge(
        &mut self,
        image: &JudgedImage,
        disk: Option<&mut TestedDisk>,
        set_aside: &mut SetAside,
    ) -> OracleResult<bool>;

    /// Compares the engine's answers about the snapshots of the same image. By default, compares nothing.
    ///
    /// # Errors
    /// As for [`SecondOpinion::judge`].
    fn judge_snapshots(
        &mut self,
        engine: &mut TestedEngine,
        image: &JudgedImage,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let _ = (engine, image, set_aside);
        Ok(())
    }

    /// Checks the files that an engine has written and closed. Their disk is compared later, as that of any image. By
    /// default, there is nothing to check.
    ///
    /// Returns false if they are not judged, because they are too large, or it costs too much in this run.
    ///
    /// # Errors
    /// A fault of the files, as a violation.
    fn judge_left(&mut self, files: &Chain) -> OracleResult<bool> {
        let _ = files;
        Ok(true)
    }

    /// Carries out the requests of `case` with the other implementation, and compares the resulting disk with that of
    /// `files`, which the engine has written. By default, does nothing.
    ///
    /// # Errors
    /// As for [`SecondOpinion::judge`].
    fn judge_requests(
        &mut self,
        engine: &mut TestedEngine,
        (case, files): (&Case, &Chain),
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let _ = (engine, case, files, set_aside);
        Ok(())
    }

    /// Returns the kinds of questions about which nothing was compared in this run, because the other implementation
    /// has no answers: by default, none.
    fn unanswered(&self) -> QuestionKinds {
        QuestionKinds::default()
    }
}

/// A function that fills a slice with the bytes that the engine reads from an offset on.
pub type ReadDisk<'r> = dyn FnMut(GuestOffset, &mut [u8]) -> Result<(), EngineError> + 'r;

/// The comparisons of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComparedImages {
    /// The images that were compared.
    pub compared: usize,
    /// The images that were not compared: they are too large, their bytes change during reads, or a side does not read
    /// them.
    pub not_compared: usize,
    /// The kinds of questions about which nothing was compared: the other implementation has no answers.
    pub unanswered: QuestionKinds,
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
    /// Nothing is known about the content of the file.
    pub is_any_content: bool,
    /// The features of all images.
    pub features: FeatureSet,
    /// The policy of the engine allows sizes near the one that the image stores.
    pub allows_near_size: bool,
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
pub(crate) struct Opinion {
    second: Box<dyn SecondOpinion>,
    extents: Vec<Extent>,
    images: ComparedImages,
}

impl Opinion {
    pub(crate) fn new(second: Box<dyn SecondOpinion>) -> Self {
        Self { second, extents: Vec::new(), images: ComparedImages::default() }
    }

    /// Begins a run of the input with this checksum.
    pub(crate) fn begin_run(&mut self, checksum: u32) {
        self.images = ComparedImages::default();
        self.second.begin_run(checksum);
    }

    /// Returns the comparisons of this run.
    pub(crate) fn images(&self) -> ComparedImages {
        ComparedImages { unanswered: self.second.unanswered(), ..self.images }
    }

    /// Opens the images of `case` once more, and has the answers judged. `expected` are the extents of the disk, for an
    /// engine that does not report extents.
    pub(crate) fn judge(
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
        let chain = &Chain::new(case.images);
        let image = match case.journals.is_empty() {
            true => smaller(image_of(case, chain), cluster_bits(chain)),
            false => image_of(case, chain),
        };
        let judged = self.judge_opened(engine, image, expected, verdicts);
        let judged = verdicts.judge_end(engine.take_end(), judged, true)?;
        self.count(judged);
        Ok(())
    }

    /// Has the files of `case` judged that an engine has written and closed.
    pub(crate) fn judge_left(
        &mut self,
        engine: &mut TestedEngine,
        case: &Case,
        files: &Chain,
        verdicts: &mut Verdicts,
    ) -> OracleResult {
        if !verdicts.judge(self.second.judge_left(files))?.unwrap_or(true) {
            self.count(false);
            return Ok(());
        }
        let image = image_of(case, files);
        let image = match &case.new_image {
            // The engine may have created the image, and may have written to the one that the harness has built.
            Some(created) => smaller(image, created.cluster_bits),
            None => image,
        };
        let judged = self.judge_opened(engine, image, None, verdicts).and_then(|is_compared| {
            let set_aside = &mut |found| verdicts.set_aside(found);
            self.second.judge_requests(engine, (case, files), set_aside).map(|()| is_compared)
        });
        let judged = verdicts.judge_end(engine.take_end(), judged, true)?;
        self.count(judged);
        Ok(())
    }

    /// Counts an image that was compared, or could not be.
    fn count(&mut self, is_compared: bool) {
        match is_compared {
            true => self.images.compared += 1,
            false => self.images.not_compared += 1,
        }
    }

    /// Has the answers about an image and its snapshots judged. The engine opens the image: its disk is not yet known.
    fn judge_opened(
        &mut self,
        engine: &mut TestedEngine,
        image: JudgedImage,
        expected: Option<&[Extent]>,
        verdicts: &mut Verdicts,
    ) -> OracleResult<bool> {
        let Self { second, extents, .. } = self;
        let allows_near_size = engine.facts().policy.size == SizePolicy::Near;
        let image = JudgedImage { allows_near_size, ..image };
        let set_aside = &mut |found| verdicts.set_aside(found);
        let mut disk = match engine.open(image.chain) {
            Ok(disk) => disk,
            Err(error) if matches!(error.kind(), ErrorKind::NoAnswer | ErrorKind::Unsupported) => {
                return Ok(false);
            }
            Err(error) => {
                return second.judge(&JudgedImage { disk: Err(error), ..image }, None, set_aside);
            }
        };
        let size_bytes = disk.virtual_size_bytes();
        let (walked, is_cut) = walked(&mut disk, extents);
        let walk = match &walked {
            Err(EngineError::NoAnswer) => {
                extents.clear();
                extents.extend(expected.iter().copied().flatten());
                if expected.is_some() { WalkEnd::Complete } else { WalkEnd::Stopped }
            }
            walked => WalkEnd::of(walked, is_cut),
        };
        let judged = JudgedImage { disk: Ok(JudgedDisk { size_bytes, extents, walk }), ..image };
        let is_compared = second.judge(&judged, Some(&mut disk), set_aside)?;
        drop(disk);
        if is_compared {
            second.judge_snapshots(engine, &judged, set_aside)?;
        }
        Ok(is_compared)
    }
}

impl<'a> WalkEnd<'a> {
    /// Returns the end of a walk, which the harness has stopped if `is_cut`.
    pub(crate) fn of(walked: &'a Result<(), EngineError>, is_cut: bool) -> Self {
        match walked {
            _ if is_cut => Self::Stopped,
            Ok(()) => Self::Complete,
            Err(error) => Self::Failed(error),
        }
    }
}

/// Walks a disk. Returns the result, and whether the harness has stopped the walk.
pub(super) fn walked(disk: &mut TestedDisk, extents: &mut Vec<Extent>) -> (Answer, bool) {
    let mut collector = Collector::new(extents, MAX_JUDGED_STEPS);
    let walked = disk.map(Window::ALL, &mut collector);
    (walked, collector.exhausted())
}

/// Returns the image of a case before any side has opened it. `chain` has its files.
fn image_of<'a>(case: &Case, chain: &'a Chain) -> JudgedImage<'a> {
    let Case { table_span_bits, cell_bytes, features, .. } = *case;
    JudgedImage {
        chain,
        table_span_bits,
        cell_bytes,
        is_damaged: !case.damage.touched().is_empty(),
        is_any_content: case.is_any_content,
        features,
        allows_near_size: false,
        disk: Err(EngineError::NoAnswer),
    }
}

/// Returns the image with its own units of mapping, or with those of an image with such clusters if they are smaller.
fn smaller(image: JudgedImage<'_>, cluster_bits: u32) -> JudgedImage<'_> {
    JudgedImage {
        // A table has as many bytes as a cluster, and its entries have 16 bytes at most.
        table_span_bits: image
            .table_span_bits
            .min(cluster_bits.saturating_mul(2).saturating_sub(4)),
        cell_bytes: image.cell_bytes.min(1 << cluster_bits.saturating_sub(5).min(32)),
        ..image
    }
}

/// Returns the size of the clusters of a file of any content, in bits. A file without a sound header of qcow2 counts as
/// one with small clusters, which is judged as if it were costly.
fn cluster_bits(chain: &Chain) -> u32 {
    const SMALL_BITS: u32 = 12;
    Header::read(chain.image()).map_or(SMALL_BITS, |header| header.geometry.cluster_size.bits())
}
