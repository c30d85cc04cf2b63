//! The report of an engine about an image agrees with the program: the names of the files below it and of the data
//! file, and the number of snapshots and bitmaps; and an engine's own check finds nothing wrong with a valid image.
//! Does not check fields that the engine does not state, nor the check of an image whose refcounts are out of date or
//! that is marked as dirty or corrupt.

use crate::disk::features::{Feature, FeatureSet};
use crate::harness::case::Case;
use crate::harness::engine::{Answer, EngineError};
use crate::harness::info::{CheckCounts, ImageInfo};
use crate::harness::tested::TestedDisk;
use crate::images::files::Images;

use super::{OracleResult, SetAside, unexpected_error, violation};

const ORACLE: &str = "info";

/// The features of images in which a check may find something.
const UNCHECKED: FeatureSet =
    FeatureSet::of(&[Feature::OutOfDateRefcounts, Feature::Dirty, Feature::Corrupt]);

/// Judges the engine's report about the image at the top of `case`.
///
/// # Errors
/// The oracle found a violation that is not known.
pub fn check(disk: &mut TestedDisk, case: &Case, set_aside: &mut SetAside) -> OracleResult {
    let judged = |asked, answer: Answer<OracleResult>| match answer {
        Ok(judged) => judged,
        Err(EngineError::NoAnswer) => Ok(()),
        Err(error) => Err(unexpected_error(ORACLE, asked, &error)),
    };
    let info = disk.info().map(|info| check_info(&info, case.images));
    judged("image", info).or_else(&mut *set_aside)?;
    let counts = disk.check().map(|counts| check_counts(counts, case.features));
    judged("check", counts).or_else(set_aside)
}

/// Compares the fields that an engine states with those that the program meant.
fn check_info(info: &ImageInfo, images: &Images) -> OracleResult {
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
fn check_counts(counts: CheckCounts, features: FeatureSet) -> OracleResult {
    let found = match counts {
        CheckCounts { errors: 0, leaks: 0 } => return Ok(()),
        _ if features.meets(UNCHECKED) => return Ok(()),
        CheckCounts { errors: 0, .. } => "leaks",
        CheckCounts { .. } => "errors",
    };
    violation(ORACLE, "check", ("nothing", found), || format!("{counts:?}"))
}
