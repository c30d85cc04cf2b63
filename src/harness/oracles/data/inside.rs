//! The inside of the data: a small disk is compared whole; in a larger one, windows at the inner edges between the
//! clusters of a piece, in the middle of clusters, and inside of compressed clusters, zeros and holes. That costs too
//! much for every run, so the entropy of the input decides which parts to check. An engine that is judged by its reads
//! alone has all parts checked, and each at one place at least.
//!
//! Does not check: compressed clusters behind their first 16 KiB; the zeros behind the fill of larger clusters, unless
//! they are deep.
//!
//! # Arithmetic
//! A part of the model is not empty, and a disk ends before 2^63. A window that begins before a part is cut there.

use crate::base::limits::MAX_INFLATED_BYTES;
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::EngineQuestion;
use crate::harness::engine::tested::TestedDisk;
use crate::harness::model::{Model, PieceState, Visible};
use crate::harness::oracles::{OracleResult, SetAside, Violation, go_on};
use crate::images::content::WriteContent;
use crate::images::content::entropy::Entropy;
use crate::images::content::fill::{DeepCluster, MAX_FILL_BYTES};

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
    disk: &mut TestedDisk,
    model: &Model,
    share: Share,
    entropy: &mut Entropy,
    buffers: &mut DataBuffers,
    set_aside: &mut SetAside,
) -> OracleResult {
    let mut has_answers = true;
    each_window(model, share, entropy, &mut |start, length| {
        if !has_answers {
            return Ok(());
        }
        let judged =
            check_range(&mut |at, into| disk.read(at, into), model, start, length, buffers);
        let judged = match share {
            Share::All => judged,
            Share::Drawn => judged.map_err(Violation::into_drawn),
        };
        has_answers = go_on(judged, set_aside)?.is_continue();
        Ok(())
    })
}

/// Adds the questions of [`check`] to `plan`.
pub fn plan(model: &Model, share: Share, entropy: &mut Entropy, plan: &mut Vec<EngineQuestion>) {
    // To add a question is no violation.
    let _ = each_window(model, share, entropy, &mut |start, length| {
        plan.push(EngineQuestion::Read(start, length));
        Ok(())
    });
}

/// Calls `visit` with the first byte and the length of each read of [`check`], in order.
pub fn each_window(
    model: &Model,
    share: Share,
    entropy: &mut Entropy,
    visit: &mut VisitWindow,
) -> OracleResult {
    let size = model.virtual_size_bytes();
    let is_small = size <= MAX_WHOLE_BYTES;
    match share {
        Share::All if is_small => each_of_whole(model, visit),
        Share::All => {
            each_of_clusters(model, visit)?;
            each_of_other_parts(model, visit)
        }
        Share::Drawn if is_small && entropy.below(size / DRAWN_MEAN_BYTES + 1) == 0 => {
            each_of_whole(model, visit)
        }
        Share::Drawn => each_drawn(model, entropy, visit),
    }
}

/// Receives the first byte and the length of a read.
type VisitWindow<'v> = dyn FnMut(GuestOffset, usize) -> OracleResult + 'v;

fn each_of_whole(model: &Model, visit: &mut VisitWindow) -> OracleResult {
    let size = model.virtual_size_bytes();
    let mut at = 0;
    while at < size {
        let end = size.min(at + WHOLE_PIECE_BYTES);
        if !model.visible_in(at..end).any(|part| too_deep(&part, part.end)) {
            window((at, end), visit)?;
        } else {
            for part in model.visible_in(at..end).filter(|part| !too_deep(part, part.end)) {
                window((part.start, part.end), visit)?;
            }
        }
        at = end;
    }
    Ok(())
}

/// Visits the windows of all clusters of data.
fn each_of_clusters(model: &Model, visit: &mut VisitWindow) -> OracleResult {
    let parts = model.visible().iter().filter(|part| is_plain(part));
    let clusters = parts.flat_map(|part| {
        (first_cluster(part)..part.end)
            .step_by(part.cluster_size.bytes_usize())
            .map(move |at| (part, at))
    });
    for (part, at) in clusters.take(MAX_CLUSTERS) {
        window_in(part, at.saturating_sub(COMPARED_BYTES / 2), visit)?;
        let filled = part.cluster_size.bytes().min(MAX_FILL_BYTES as u64);
        window_in(part, at + filled / 2, visit)?;
        let inner = deep_of(part).into_iter().flat_map(DeepCluster::inner_stamps);
        for inner in inner {
            window_in(part, at + inner - COMPARED_BYTES / 2, visit)?;
        }
    }
    Ok(())
}

/// Visits the middle of all parts that have no plain data.
fn each_of_other_parts(model: &Model, visit: &mut VisitWindow) -> OracleResult {
    let others = model.visible().iter().filter(|part| !is_plain(part));
    for part in others.take(MAX_CLUSTERS) {
        let (start, length) = readable_part(part, first_cluster(part));
        window_in(part, start + length / 2, visit)?;
    }
    Ok(())
}

/// Visits a window in a cluster of data, and in some runs one in a part without plain data. Inflating costs more than
/// other reads, so a compressed cluster comes half as often.
fn each_drawn(model: &Model, entropy: &mut Entropy, visit: &mut VisitWindow) -> OracleResult {
    let parts = model.visible();
    let first = entropy.below(parts.len() as u64) as usize;
    let (before, behind) = parts.split_at(first);
    let mut cyclic = behind.iter().chain(before);
    if let Some(part) = cyclic.clone().find(|part| is_plain(part)) {
        window_in(part, drawn_place(part, entropy), visit)?;
    }
    match cyclic.find(|part| !is_plain(part)) {
        Some(part) if entropy.one_in(if is_compressed(part) { 4 } else { 2 }) => {
            let (start, length) = readable_part(part, drawn_cluster(part, entropy));
            window_in(part, start + entropy.below(length), visit)
        }
        _ => Ok(()),
    }
}

/// Returns the beginning of a window in a part with data that are not compressed: between two clusters, or inside of
/// one.
fn drawn_place(part: &Visible, entropy: &mut Entropy) -> u64 {
    let cluster = drawn_cluster(part, entropy);
    match entropy.one_in(2) {
        true => match deep_of(part) {
            Some(deep) => {
                let nth = entropy.below(deep.inner_stamps().count() as u64) as usize;
                let inner = deep.inner_stamps().nth(nth).unwrap_or(0);
                (cluster + inner).saturating_sub(COMPARED_BYTES / 2)
            }
            None => cluster.saturating_sub(COMPARED_BYTES / 2),
        },
        false => cluster + entropy.below(part.cluster_size.bytes().min(MAX_FILL_BYTES as u64)),
    }
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

/// Returns the places of the data in each cluster of a part, if they are deep.
fn deep_of(part: &Visible) -> Option<DeepCluster> {
    match part.piece.state {
        PieceState::Normal(_, write) if write.content() == WriteContent::Deep => {
            DeepCluster::new(part.cluster_size)
        }
        _ => None,
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

/// Visits the bytes of a window that lie in a part.
fn window_in(part: &Visible, at: u64, visit: &mut VisitWindow) -> OracleResult {
    let start = at.max(part.start);
    window((start, part.end.min(at.saturating_add(COMPARED_BYTES))), visit)
}

fn window((start, end): (u64, u64), visit: &mut VisitWindow) -> OracleResult {
    match usize::try_from(end.saturating_sub(start)) {
        Ok(length) if length > 0 => visit(GuestOffset::new(start), length),
        _ => Ok(()),
    }
}
