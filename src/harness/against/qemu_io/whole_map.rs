//! A whole `qemu-img map` of an image, compared field by field with the engine's extents.
//!
//! Named differences: the flag `zero` of data, which depends on the holes of a file; VHDX images, of which QEMU reports
//! no blocks; and files so long that QEMU counts their clusters for minutes.
//!
//! # Arithmetic
//! The end of a part that passes 2^64 lies past the end of every disk.

use crate::disk::extent::Extent;
use crate::disk::observer::SecondAnswer;
use crate::harness::against::second_opinion::{JudgedDisk, JudgedImage, WalkEnd};
use crate::harness::engines::image_program::{parse_map, without_holes};
use crate::harness::oracles::{OracleResult, violation};
use crate::processes::ProcessEnd;

use super::costs::is_long;
use super::failure::fail;
use super::files::ChainInMemory;
use super::findings::{ORACLE, QEMU, RecordAnswer, ended};
use super::{answers, session};

/// The number of tables of the part of a disk that is mapped: qemu-img visits each table, also a missing one.
const MAX_VISITED_TABLES: u64 = 4096;

/// Returns the version of qemu-img.
pub(super) fn version() -> Result<String, String> {
    session::printed_version("qemu-img")
}

/// Compares the map of the image in `files`.
pub(super) fn compare(
    files: &ChainInMemory,
    image: &JudgedImage,
    disk: &JudgedDisk,
    answered: &mut RecordAnswer<'_>,
) -> OracleResult {
    let layers = image.chain.layers();
    let is_hidden = layers.iter().any(|layer| layer.format.facts().is_all_data_for_qemu);
    if is_long(image) || is_hidden || disk.extents.is_empty() {
        return Ok(());
    }
    let span_bits = match layers {
        [_] => image.table_span_bits,
        // A table of a qcow2 image has as many bytes as a cluster, or more than a subcluster.
        _ => (2 * image.cell_bytes.ilog2()).saturating_sub(3).min(image.table_span_bits),
    };
    let most = MAX_VISITED_TABLES.checked_shl(span_bits).unwrap_or(u64::MAX);
    let most = most.min(i64::MAX.unsigned_abs() & !0xFFFF);
    let mut command = format!("qemu-img map --output=json --max-length={most} 'json:");
    files.write_device(image.chain, &mut command);
    command.push('\'');
    let ran = session::run(&command, files.folder())
        .unwrap_or_else(|what| fail(&format!("qemu-img: {what}")));
    let (theirs, is_complete) = parse_map(&ran.output);
    let is_clean = ran.end.process == ProcessEnd::Exit(0);
    if !is_clean && ran.end.process != ProcessEnd::Exit(1) {
        return Err(ended(Box::new(ran)).attributed_to("qemu-img"));
    }
    if !is_clean && answers::is_named(&ran.end.detail, image) {
        return Ok(());
    }
    let ours = clipped(disk.extents, most);
    let is_whole = is_clean && is_complete;
    match (is_whole, disk.walk) {
        (false, WalkEnd::Complete) if !image.is_any_content => {
            return violation(ORACLE, "map", ("an error", "an answer"), || ran.end.detail.clone());
        }
        (true, WalkEnd::Failed(error)) if disk.size_bytes <= most && !image.is_any_content => {
            return violation(ORACLE, "map", ("an answer", "an error"), || error.to_string());
        }
        _ => {}
    }
    let [theirs, ours] = [&theirs, &ours].map(|extents| without_holes(extents, image.chain));
    let is_compared_whole = is_whole && matches!(disk.walk, WalkEnd::Complete);
    answered(match is_compared_whole {
        true => SecondAnswer::SameMap,
        false => SecondAnswer::SameFailedMap,
    });
    // An error may have cut the last extent of each list.
    let shorter = theirs.len().min(ours.len());
    let count = if is_compared_whole { shorter } else { shorter.saturating_sub(1) };
    let different = theirs.iter().zip(&ours).take(count).find(|(theirs, ours)| theirs != ours);
    if let Some((theirs, ours)) = different {
        return Err(QEMU.other_extent(theirs, ours));
    }
    if is_compared_whole && theirs.len() != ours.len() {
        return violation(ORACLE, "map", ("QEMU's extents", "another number"), || {
            format!("QEMU has {} extents, the implementation {}", theirs.len(), ours.len())
        });
    }
    Ok(())
}

/// Returns the extents before the guest offset `end`.
fn clipped(extents: &[Extent], end: u64) -> Vec<Extent> {
    let before = extents.iter().take_while(|extent| extent.start.get() < end);
    let clip = |extent: &Extent| {
        let length_bytes = extent.length_bytes.min(end - extent.start.get());
        Extent { length_bytes, ..*extent }
    };
    before.map(clip).collect()
}
