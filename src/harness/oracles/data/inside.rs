//! The inside of the data: a small disk is compared whole; in a larger one, windows at the inner edges between the
//! clusters of a piece, in the middle of clusters, and inside of compressed clusters, zeros and holes. That costs too
//! much for every run, so the entropy of the input decides which parts to check. If an engine is judged by its reads
//! alone, every part is checked, at one place at least.
//!
//! Does not check: bytes behind the first 16 KiB of a compressed cluster; zeros behind the first 64 KiB of another
//! cluster, unless the cluster is deep (`content::fill`).
//!
//! # Arithmetic
//! A part of the model is not empty, and a disk ends before 2^63. A window that begins before a part is cut there.

use smallvec::SmallVec;

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
/// In some runs, which the input selects, a small disk is compared whole: on average, at most this number of bytes per
/// run.
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
    for (start, length) in windows(model, share, entropy) {
        let judged =
            check_range(&mut |at, into| disk.read(at, into), model, start, length, buffers);
        let judged = match share {
            Share::All => judged,
            Share::Drawn => judged.map_err(Violation::into_drawn),
        };
        if go_on(judged, set_aside)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Adds the questions of [`check`] to `plan`.
pub fn plan(model: &Model, share: Share, entropy: &mut Entropy, plan: &mut Vec<EngineQuestion>) {
    let windows = windows(model, share, entropy).into_iter();
    plan.extend(windows.map(|(start, length)| EngineQuestion::Read(start, length)));
}

/// Reads: the first byte and the length of each.
type Windows = SmallVec<[(GuestOffset, usize); 4]>;

/// Returns the reads of [`check`], in order.
fn windows(model: &Model, share: Share, entropy: &mut Entropy) -> Windows {
    let mut windows = Windows::new();
    let size = model.virtual_size_bytes();
    let is_small = size <= MAX_WHOLE_BYTES;
    match share {
        Share::All if is_small => add_whole(model, &mut windows),
        Share::All => {
            add_clusters(model, &mut windows);
            add_other_parts(model, &mut windows);
        }
        Share::Drawn if is_small && entropy.below(size / DRAWN_MEAN_BYTES + 1) == 0 => {
            add_whole(model, &mut windows);
        }
        Share::Drawn => add_drawn(model, entropy, &mut windows),
    }
    windows
}

fn add_whole(model: &Model, windows: &mut Windows) {
    let size = model.virtual_size_bytes();
    let mut at = 0;
    while at < size {
        let end = size.min(at + WHOLE_PIECE_BYTES);
        if !model.visible_in(at..end).any(|part| too_deep(&part, part.end)) {
            add(at, end, windows);
        } else {
            for part in model.visible_in(at..end).filter(|part| !too_deep(part, part.end)) {
                add(part.start, part.end, windows);
            }
        }
        at = end;
    }
}

fn add_clusters(model: &Model, windows: &mut Windows) {
    let parts = model.visible().iter().filter(|part| is_plain(part));
    let clusters = parts.flat_map(|part| {
        (first_cluster(part)..part.end)
            .step_by(part.cluster_size.bytes_usize())
            .map(move |at| (part, at))
    });
    for (part, at) in clusters.take(MAX_CLUSTERS) {
        add_in(part, at.saturating_sub(COMPARED_BYTES / 2), windows);
        let filled = part.cluster_size.bytes().min(MAX_FILL_BYTES as u64);
        add_in(part, at + filled / 2, windows);
        let inner = deep_of(part).into_iter().flat_map(DeepCluster::inner_stamps);
        inner.for_each(|inner| add_in(part, at + inner - COMPARED_BYTES / 2, windows));
    }
}

/// Adds the middle of all parts that have no plain data.
fn add_other_parts(model: &Model, windows: &mut Windows) {
    let others = model.visible().iter().filter(|part| !is_plain(part));
    for part in others.take(MAX_CLUSTERS) {
        let (start, length) = readable_part(part, first_cluster(part));
        add_in(part, start + length / 2, windows);
    }
}

/// Adds a window in a cluster of data, and in some runs one in a part without plain data. Inflating costs more than
/// other reads, so a compressed cluster comes half as often.
fn add_drawn(model: &Model, entropy: &mut Entropy, windows: &mut Windows) {
    let parts = model.visible();
    let first = entropy.below(parts.len() as u64) as usize;
    let (before, behind) = parts.split_at(first);
    let mut cyclic = behind.iter().chain(before);
    if let Some(part) = cyclic.clone().find(|part| is_plain(part)) {
        add_in(part, drawn_place(part, entropy), windows);
    }
    match cyclic.find(|part| !is_plain(part)) {
        Some(part) if entropy.one_in(if is_compressed(part) { 4 } else { 2 }) => {
            let (start, length) = readable_part(part, drawn_cluster(part, entropy));
            add_in(part, start + entropy.below(length), windows);
        }
        _ => {}
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

fn is_compressed(part: &Visible) -> bool {
    matches!(part.piece.state, PieceState::Compressed(..))
}

/// Returns the beginning of the cluster that holds the first byte of a part.
fn first_cluster(part: &Visible) -> u64 {
    part.start & !part.cluster_size.mask()
}

/// Adds the bytes of a window that lie in a part.
fn add_in(part: &Visible, at: u64, windows: &mut Windows) {
    add(at.max(part.start), part.end.min(at.saturating_add(COMPARED_BYTES)), windows);
}

/// Adds the bytes from `start` to `end`, if there are any.
fn add(start: u64, end: u64, windows: &mut Windows) {
    if start < end {
        windows.push((GuestOffset::new(start), (end - start) as usize));
    }
}
