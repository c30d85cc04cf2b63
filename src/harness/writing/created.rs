//! Has an engine create an empty image, and judges it before the engine writes to it.

use crate::disk::observer::Observer;
use crate::formats::qcow2::geometry::{Compression, Version};
use crate::formats::qcow2::header::Header;
use crate::harness::cases::case::{Case, Verdicts};
use crate::harness::engine::EngineError;
use crate::harness::engine::tested::TestedEngine;
use crate::harness::files::chain::Chain;
use crate::harness::oracles::{self, OracleResult, SetAside, Violation, observed, written};
use crate::programs::NewImage;

use super::judge::WriterJudge;
use super::steps::FileSteps;

impl WriterJudge {
    /// Has the engine create the image of `case`, if the program wants that. Returns `None` if it does not, if the
    /// engine does not create such images, or if there is a known finding in the image that is more than a leak: the
    /// engine then writes to the image that the harness has built.
    pub(super) fn create(
        &mut self,
        engine: &mut TestedEngine,
        case: &Case,
        has_cuts: bool,
        observer: &dyn Observer,
        verdicts: &mut Verdicts,
    ) -> Result<Option<Chain>, Box<Violation>> {
        let Some(wanted) = &case.new_image else { return Ok(None) };
        let chain = Chain::empty(case.images, has_cuts, &self.meter);
        match engine.create(&chain, wanted) {
            Ok(()) => {}
            Err(EngineError::NoAnswer) => return Ok(None),
            Err(error @ EngineError::Unsupported(_)) => {
                observed::error(&error, observer);
                return Ok(None);
            }
            // The engine is not to blame.
            Err(error @ EngineError::NotGiven(_)) => {
                return Err(oracles::unexpected_error("open", "image", &error));
            }
            Err(error) => {
                verdicts
                    .judge::<()>(Err(oracles::unexpected_error("written", "create", &error)))?;
                return Ok(None);
            }
        }
        chain.note_closed();
        let files = chain.as_written();
        let judged = self.judge_created(&files, wanted, verdicts);
        match &judged {
            Ok(true) => {}
            Ok(false) => self.of_known_finding = Some(files),
            Err(_) => self.written = Some(files),
        }
        Ok(judged?.then_some(chain))
    }

    /// Judges the files of a new image. Returns false if there is a known finding in them that is more than a leak.
    fn judge_created(
        &mut self,
        files: &Chain,
        wanted: &NewImage,
        verdicts: &mut Verdicts,
    ) -> Result<bool, Box<Violation>> {
        // With another geometry, the other oracles would find the same in their words.
        let mut steps = FileSteps::new(verdicts, written::in_file);
        let has_geometry = steps.each(|set_aside| check_geometry(files, wanted, set_aside))?;
        Ok(has_geometry && !self.closed(files, verdicts)?.has_harm)
    }
}

/// Compares the header of a new image with the properties that the harness has asked for.
fn check_geometry(files: &Chain, wanted: &NewImage, set_aside: &mut SetAside) -> OracleResult {
    let header = Header::read(files.image()).map_err(|error| {
        oracles::unexpected_error("open", "new image", &EngineError::from(error))
    })?;
    let geometry = &header.geometry;
    let number = u64::from;
    let version = if geometry.version == Version::V2 { 2 } else { 3 };
    let is_zstd = geometry.compression == Compression::Zstd;
    for (field, expected, actual) in [
        ("version of a new image", number(wanted.version), version),
        (
            "cluster size of a new image",
            number(wanted.cluster_bits),
            number(geometry.cluster_size.bits()),
        ),
        (
            "refcount width of a new image",
            number(wanted.refcount_bits),
            1 << geometry.refcount_order,
        ),
        (
            "L2 entries of a new image",
            u64::from(wanted.extended_l2),
            u64::from(geometry.extended_l2),
        ),
        ("compression type of a new image", u64::from(wanted.is_zstd), u64::from(is_zstd)),
        ("backing file of a new image", 0, number(header.backing_file_bytes)),
        ("size of a new image", wanted.size_bytes, header.size_bytes),
    ] {
        written::check_new_image(field, expected, actual).or_else(&mut *set_aside)?;
    }
    Ok(())
}
