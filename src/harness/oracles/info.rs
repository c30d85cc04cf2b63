//! The engine's report about an image agrees with the program: the names of the backing files and of the data file, and
//! the numbers of snapshots and bitmaps. The engine's own check finds nothing wrong with a valid image; the oracle asks
//! for it in a share of the runs.
//!
//! Does not check: fields that the engine does not state; the check of an image whose refcounts are out of date, or
//! that is marked as dirty or corrupt.

use crate::base::features::{Feature, FeatureSet};
use crate::harness::cases::case::Case;
use crate::harness::engine::tested::TestedDisk;
use crate::harness::engine::{Answer, CheckCounts, EngineError, ImageInfo};
use crate::images::files::Images;

use super::{OracleResult, SetAside, Violation, unexpected_error, violation};

const ORACLE: &str = "info";

/// The features of images in which a check may find something.
const UNCHECKED: FeatureSet =
    FeatureSet::of(&[Feature::OutOfDateRefcounts, Feature::Dirty, Feature::Corrupt]);

/// Judges the engine's report about the image at the top of `case`.
pub fn check_info(disk: &mut TestedDisk, case: &Case, set_aside: &mut SetAside) -> OracleResult {
    let judged = judge("image", disk.info().map(|info| info_as_meant(&info, case.images)));
    judged.or_else(set_aside)
}

/// Judges the engine's check of the image at the top of `case`.
pub fn check_counts(disk: &mut TestedDisk, case: &Case, set_aside: &mut SetAside) -> OracleResult {
    let counts = disk.check().map(|counts| nothing_found(counts, case.features));
    judge("check", counts).map_err(Violation::into_drawn).or_else(set_aside)
}

/// Returns the verdict about an answer. An engine without an answer is not judged.
fn judge(asked: &'static str, judged: Answer<OracleResult>) -> OracleResult {
    match judged {
        Ok(judged) => judged,
        Err(EngineError::NoAnswer) => Ok(()),
        Err(error) => Err(unexpected_error(ORACLE, asked, &error)),
    }
}

/// Compares the fields that an engine states with those that the program meant.
fn info_as_meant(info: &ImageInfo, images: &Images) -> OracleResult {
    let top = &images.top().declarations;
    let named = || {
        let names = images.layers().map(|files| &files.declarations.backing_name);
        names.take_while(|name| !name.is_empty())
    };
    let ImageInfo { chain: below, data_file, snapshots, bitmaps } = info;
    let fields = [
        ("files below", below.as_ref().is_none_or(|below| named().eq(below))),
        ("data file", data_file.as_ref().is_none_or(|name| *name == top.data_file_name)),
        ("snapshots", snapshots.is_none_or(|count| count == top.vm_state_bytes.len())),
        ("bitmaps", bitmaps.is_none_or(|count| count == top.bitmaps.len())),
    ];
    let Some((field, _)) = fields.iter().find(|(_, is_as_meant)| !is_as_meant) else {
        return Ok(());
    };
    violation(ORACLE, field, ("as meant", "different"), || {
        let names: Vec<_> = named().map(|name| String::from_utf8_lossy(name)).collect();
        format!("the image: {top:?}\nfiles below it: {names:?}\nthe engine: {info:?}")
    })
}

/// Judges the result of a check of a valid image.
fn nothing_found(counts: CheckCounts, features: FeatureSet) -> OracleResult {
    match counts == CheckCounts::default() || features.meets(UNCHECKED) {
        true => Ok(()),
        false => violation(ORACLE, "check", ("nothing", counts.result()), || format!("{counts:?}")),
    }
}
