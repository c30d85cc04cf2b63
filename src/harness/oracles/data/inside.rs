//! The inside of the data: a small disk is compared whole; in a larger one, windows at the inner edges between the
//! clusters of a piece, in the middle of clusters, and inside of compressed clusters, zeros and holes. That costs too
//! much for every run, so the entropy of the input decides which parts to check. An engine that is judged by its reads
//! alone has all parts checked, and each at one place at least.
//!
//! Does not check: compressed clusters behind their first 16 KiB; the zeros behind the fill of larger clusters.
//!
//! # Arithmetic
//! A part of the model is not empty, and a disk ends before 2^63. A window that begins before a part is cut there.

use crate::disk::limits::MAX_INFLATED_BYTES;
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::OpenDisk;
use crate::harness::model::{Model, PieceState, Visible};
use crate::harness::oracles::OracleResult;
use crate::images::entropy::Entropy;
use crate::images::fill::MAX_FILL_BYTES;

use super::{DataBuffers, check_range, too_deep};

/// The largest disk that is compared whole, in bytes.
const MAX_WHOLE_BYTES: u64 = 1 << 20;
/// The bytes of a whole disk that are read at once.
const WHOLE_PIECE_BYTES: u64 = 64 << 10;
/// A run compares as many bytes on average, or less, if the input decides.
const DRAWN_MEAN_BYTES: u64 = 2 << 10;
/// The length of a window in bytes.
const COMPARED_BYTES: u64 = 128;
/// The number of clusters of a larger disk whose windows are all checked.
const MAX_CLUSTERS: usize = 1024;

/// The share of a disk that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Some of it: the entropy decides.
    Drawn,
    /// All of it.
    All,
}

/// Compares every byte of a small disk, or of some windows of a larger one.
pub fn check(
    disk: &mut impl OpenDisk,
    model: &Model,
    share: Share,
    entropy: &mut Entropy,
    buffers: &mut DataBuffers,
) -> OracleResult {
    let size = model.virtual_size_bytes();
    let is_small = size <= MAX_WHOLE_BYTES;
    match share {
        Share::All if is_small => check_whole(disk, model, buffers),
        Share::All => {
            check_clusters(disk, model, buffers)?;
            check_other_parts(disk, model, buffers)
        }
        Share::Drawn => {
            let drawn = match is_small && entropy.below(size / DRAWN_MEAN_BYTES + 1) == 0 {
                true => check_whole(disk, model, buffers),
                false => check_drawn(disk, model, entropy, buffers),
            };
            drawn.map_err(|found| found.into_drawn())
        }
    }
}

fn check_whole(disk: &mut impl OpenDisk, model: &Model, buffers: &mut DataBuffers) -> OracleResult {
    let size = model.virtual_size_bytes();
    let mut at = 0;
    while at < size {
        let end = size.min(at + WHOLE_PIECE_BYTES);
        if !model.visible_in(at..end).any(|part| too_deep(&part, part.end)) {
            check_window(disk, model, (at, end), buffers)?;
        } else {
            for part in model.visible_in(at..end).filter(|part| !too_deep(part, part.end)) {
                check_window(disk, model, (part.start, part.end), buffers)?;
            }
        }
        at = end;
    }
    Ok(())
}

/// Checks the windows of all clusters of data.
fn check_clusters(
    disk: &mut impl OpenDisk,
    model: &Model,
    buffers: &mut DataBuffers,
) -> OracleResult {
    let parts = model.visible().iter().filter(|part| is_plain(part));
    let clusters = parts.flat_map(|part| {
        (first_cluster(part)..part.end)
            .step_by(part.cluster_size.bytes_usize())
            .map(move |at| (part, at))
    });
    for (part, at) in clusters.take(MAX_CLUSTERS) {
        check_in(disk, model, part, at.saturating_sub(COMPARED_BYTES / 2), buffers)?;
        let filled = part.cluster_size.bytes().min(MAX_FILL_BYTES as u64);
        check_in(disk, model, part, at + filled / 2, buffers)?;
    }
    Ok(())
}

/// Checks the middle of all parts that have no plain data.
fn check_other_parts(
    disk: &mut impl OpenDisk,
    model: &Model,
    buffers: &mut DataBuffers,
) -> OracleResult {
    let others = model.visible().iter().filter(|part| !is_plain(part));
    for part in others.take(MAX_CLUSTERS) {
        let (start, length) = readable_part(part, first_cluster(part));
        check_in(disk, model, part, start + length / 2, buffers)?;
    }
    Ok(())
}

/// Checks a window in a cluster of data, and in some runs one in a part without plain data. Inflating costs more than
/// other reads, so a compressed cluster comes half as often.
fn check_drawn(
    disk: &mut impl OpenDisk,
    model: &Model,
    entropy: &mut Entropy,
    buffers: &mut DataBuffers,
) -> OracleResult {
    let parts = model.visible();
    let first = entropy.below(parts.len() as u64) as usize;
    let (before, behind) = parts.split_at(first);
    let mut cyclic = behind.iter().chain(before);
    if let Some(part) = cyclic.clone().find(|part| is_plain(part)) {
        check_data_part(disk, model, part, entropy, buffers)?;
    }
    match cyclic.find(|part| !is_plain(part)) {
        Some(part) if entropy.one_in(if is_compressed(part) { 4 } else { 2 }) => {
            let (start, length) = readable_part(part, drawn_cluster(part, entropy));
            check_in(disk, model, part, start + entropy.below(length), buffers)
        }
        _ => Ok(()),
    }
}

/// Checks a window in a part with data that are not compressed: between two clusters, or inside of one.
fn check_data_part(
    disk: &mut impl OpenDisk,
    model: &Model,
    part: &Visible,
    entropy: &mut Entropy,
    buffers: &mut DataBuffers,
) -> OracleResult {
    let cluster = drawn_cluster(part, entropy);
    let at = match entropy.one_in(2) {
        true => cluster.saturating_sub(COMPARED_BYTES / 2),
        false => cluster + entropy.below(part.cluster_size.bytes().min(MAX_FILL_BYTES as u64)),
    };
    check_in(disk, model, part, at, buffers)
}

/// Returns the beginning of a cluster of a part.
fn drawn_cluster(part: &Visible, entropy: &mut Entropy) -> u64 {
    let (first, size) = (first_cluster(part), part.cluster_size.bytes());
    first + entropy.below((part.end - first).div_ceil(size)) * size
}

/// Returns the bytes of a part without plain data in which a window may begin, as their beginning and their number: in
/// the compressed cluster at `cluster`, those that the loop can afford to inflate; in zeros and holes, all.
fn readable_part(part: &Visible, cluster: u64) -> (u64, u64) {
    match part.piece.state {
        PieceState::Compressed(..) => {
            let most = MAX_INFLATED_BYTES.saturating_sub(COMPARED_BYTES);
            (cluster, (part.end - cluster).min(part.cluster_size.bytes()).min(most))
        }
        _ => (part.start, part.end - part.start),
    }
}

/// Reports whether a part has data that are not compressed.
fn is_plain(part: &Visible) -> bool {
    matches!(part.piece.state, PieceState::Normal(..))
}

/// Reports whether a part has compressed data.
fn is_compressed(part: &Visible) -> bool {
    matches!(part.piece.state, PieceState::Compressed(..))
}

/// Returns the beginning of the cluster that holds the first byte of a part.
fn first_cluster(part: &Visible) -> u64 {
    part.start & !part.cluster_size.mask()
}

/// Compares the bytes of a window that lie in a part.
fn check_in(
    disk: &mut impl OpenDisk,
    model: &Model,
    part: &Visible,
    at: u64,
    buffers: &mut DataBuffers,
) -> OracleResult {
    let start = at.max(part.start);
    check_window(disk, model, (start, part.end.min(at.saturating_add(COMPARED_BYTES))), buffers)
}

fn check_window(
    disk: &mut impl OpenDisk,
    model: &Model,
    (start, end): (u64, u64),
    buffers: &mut DataBuffers,
) -> OracleResult {
    match usize::try_from(end.saturating_sub(start)) {
        Ok(length) if length > 0 => {
            check_range(disk, model, GuestOffset::new(start), length, buffers)
        }
        _ => Ok(()),
    }
}
