//! The data that the engine reads are the data that the program wrote: stamps at the edges of every piece, the fill
//! between them, and zeros without them. All edges are checked. Does not check all bytes between the edges of a piece
//! in each run ([`inside`]). Does not check large compressed clusters after their first 16 KiB
//! (`limits::MAX_INFLATED_BYTES`).

pub mod edges;
pub mod inside;

use std::ops::Range;

use crate::base::limits::MAX_INFLATED_BYTES;
use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::Answer;
use crate::harness::model::{Model, PieceState, Visible};
use crate::images::content::fill::{DeepCluster, between_stamps, fill};
use crate::images::content::unstamped::{MAX_UNSTAMPED_BYTES, UnstampedData};
use crate::images::content::{LookOfCluster, STAMP_BYTES, WriteContent, WriteNumber, stamp};
use crate::images::format::looks::{self, MadeLook};

use super::{OracleResult, POISON, unexpected_error, violation, violation_at};

const ORACLE: &str = "data";

/// A function that fills a slice with the guest's bytes from an offset on.
pub type GuestRead<'r> = dyn FnMut(GuestOffset, &mut [u8]) -> Answer + 'r;

/// Reports whether a read that ends at `end` in this part of the disk inflates more of a compressed cluster than the
/// loop can afford.
fn too_deep(visible: &Visible, end: u64) -> bool {
    InCompressed::of(visible, end.saturating_sub(1)).is_some_and(InCompressed::is_too_deep)
}

/// The buffers of the oracle, reused from disk to disk.
#[derive(Debug, Default)]
pub struct DataBuffers {
    expected: Vec<u8>,
    actual: Vec<u8>,
}

/// Reports whether reading a range inflates more of a compressed cluster than the loop can afford.
pub fn costly(model: &Model, start: GuestOffset, length_bytes: usize) -> bool {
    let last = start.get().saturating_add(length_bytes as u64).saturating_sub(1);
    [start.get(), last]
        .into_iter()
        .any(|byte| in_compressed(model, byte).is_some_and(InCompressed::is_too_deep))
}

/// The place of a byte in a compressed cluster.
#[derive(Clone, Copy, Debug)]
pub struct InCompressed {
    /// The bytes of the cluster before it.
    pub inside: u64,
    /// The size of the cluster.
    pub cluster_bytes: u64,
}

impl InCompressed {
    /// Returns the place of a byte in this part of the disk, if the part is compressed.
    fn of(visible: &Visible, byte: u64) -> Option<Self> {
        let size = visible.cluster_size;
        let place = Self { inside: byte & size.mask(), cluster_bytes: size.bytes() };
        matches!(visible.piece.state, PieceState::Compressed(..)).then_some(place)
    }

    /// Reports whether a read that ends with the byte inflates more of the cluster than the loop can afford.
    pub fn is_too_deep(self) -> bool {
        self.inside >= MAX_INFLATED_BYTES
    }
}

/// Returns the place of a byte of the disk in its compressed cluster, if it has one.
pub fn in_compressed(model: &Model, byte: u64) -> Option<InCompressed> {
    InCompressed::of(&model.at(byte)?, byte)
}

/// Reads any range of the disk and compares every byte. If the range reaches past the end, the engine may refuse it;
/// otherwise, the bytes past the end are zeros.
pub fn check_range(
    read: &mut GuestRead,
    model: &Model,
    start: GuestOffset,
    length_bytes: usize,
    buffers: &mut DataBuffers,
) -> OracleResult {
    let DataBuffers { expected, actual } = buffers;
    actual.clear();
    actual.resize(length_bytes, POISON);
    let on_disk = model.virtual_size_bytes().saturating_sub(start.get());
    let past_end = start.get().saturating_add(length_bytes as u64) > model.virtual_size_bytes();
    match read(start, actual) {
        Err(_) if past_end => return Ok(()),
        Err(error) => return Err(unexpected_error(ORACLE, "range", &error)),
        Ok(()) => {}
    }
    let on_disk = on_disk.min(length_bytes as u64);
    if actual[on_disk as usize..].iter().any(|byte| *byte != 0) {
        return violation(ORACLE, "past the end", ("an error or zeros", "other bytes"), || {
            format!(
                "{length_bytes} bytes at guest offset {start}, of which {on_disk} lie on the disk"
            )
        });
    }
    for (part, there) in parts_in(model, start, length_bytes) {
        check_part(model, &part, &actual[there], expected)?;
    }
    Ok(())
}

/// Compares the bytes that the engine read from a part of the disk, from its start on.
fn check_part(
    model: &Model,
    part: &Visible,
    actual: &[u8],
    expected: &mut Vec<u8>,
) -> OracleResult {
    // Without an early exit, the compiler compares many bytes at a time.
    let all_zeros = || actual.iter().fold(0, |sum, byte| sum | byte) == 0;
    if !has_content(&part.state()) && all_zeros() {
        return Ok(());
    }
    expected.clear();
    expected.resize(actual.len(), 0);
    expect_of(model, part, GuestOffset::new(part.start), expected);
    if expected == actual {
        return Ok(());
    }
    admit_in(part, part.start, expected, actual);
    let Some(at) = first_differing(expected, actual) else { return Ok(()) };
    let guest = GuestOffset::new(part.start) + at as u64;
    mismatch(guest, &part.state(), &actual[at..], || {
        format!("expected {:#04x}, actual {:#04x}", expected[at], actual[at])
    })
}

/// Returns the index of the first byte that differs.
fn first_differing(expected: &[u8], actual: &[u8]) -> Option<usize> {
    expected.iter().zip(actual).position(|(one, other)| one != other)
}

/// Returns the parts of the disk in a range, each with its place in the range.
fn parts_in(
    model: &Model,
    start: GuestOffset,
    length_bytes: usize,
) -> impl Iterator<Item = (Visible, Range<usize>)> {
    let start = start.get();
    let parts = model.visible_in(start..start.saturating_add(length_bytes as u64));
    parts.map(move |part| {
        let there = (part.start - start) as usize..(part.end - start) as usize;
        (part, there)
    })
}

/// Fills `into` with the bytes that a guest reads from `start` on, according to the model: stamps, shapes and zeros.
/// `into` is zeroed, and ends at the end of the disk at the latest.
pub fn expect(model: &Model, start: GuestOffset, into: &mut [u8]) {
    for (part, there) in parts_in(model, start, into.len()) {
        expect_of(model, &part, GuestOffset::new(part.start), &mut into[there]);
    }
}

/// Adds stamps of the right write, or zeros, to `expected` if `actual` has them at inner edges of subclusters. If a
/// snapshot shares a host cluster and holds the subclusters of one write as several pieces, the build stamps the edges
/// of these pieces, too, and leaves room for that at all other edges.
pub fn admit_inner_stamps(model: &Model, start: GuestOffset, expected: &mut [u8], actual: &[u8]) {
    for (part, there) in parts_in(model, start, expected.len()) {
        admit_in(&part, part.start, &mut expected[there.clone()], &actual[there]);
    }
}

/// Does the same in one part of the disk that contains both ranges.
fn admit_in(visible: &Visible, start: u64, expected: &mut [u8], actual: &[u8]) {
    let PieceState::Normal(_, write) = visible.piece.state else { return };
    let cell = visible.cell_bytes;
    // Only images with subclusters have inner stamps.
    if write == WriteNumber::NONE || cell == visible.cluster_size.bytes() {
        return;
    }
    let end = start.saturating_add(expected.len() as u64);
    for at in (start / cell * cell..end).step_by(cell as usize) {
        for edge in [at, at + cell - STAMP_BYTES as u64] {
            if !is_inner(visible, edge) {
                continue;
            }
            for content in [stamp(GuestOffset::new(edge), write), [0; STAMP_BYTES]] {
                if cut(actual, start, edge).is_some_and(|(cut, part)| cut == &content[part]) {
                    overlay(expected, start, edge, &content);
                }
            }
        }
    }
}

/// Reports whether the edge of a subcluster, at which a stamp would begin, is no edge of its piece in a cluster: those
/// have stamps in every image.
fn is_inner(visible: &Visible, edge: u64) -> bool {
    let Visible { piece, piece_end, cluster_size, .. } = *visible;
    let past = edge + STAMP_BYTES as u64;
    let is_outer = |at: u64| at & cluster_size.mask() == 0;
    !is_outer(edge) && !is_outer(past) && edge != piece.start && past != piece_end
}

/// Returns the bytes of `content` (which begins at `start`) that a stamp at `at` covers, and the part of the stamp
/// that covers them.
fn cut(content: &[u8], start: u64, at: u64) -> Option<(&[u8], Range<usize>)> {
    let skipped = start.saturating_sub(at) as usize;
    let target = at.saturating_sub(start) as usize;
    let length = STAMP_BYTES.checked_sub(skipped)?.min(content.len().checked_sub(target)?);
    Some((&content[target..target + length], skipped..skipped + length))
}

/// Reports whether a piece in this state has bytes other than zeros.
fn has_content(state: &PieceState) -> bool {
    matches!(state, PieceState::Normal(..) | PieceState::Compressed(..))
}

/// Fills `into` with the bytes that a guest reads from `start` on, within one part of the disk. `into` is zeroed.
fn expect_of(model: &Model, visible: &Visible, start: GuestOffset, into: &mut [u8]) {
    let Visible { piece, piece_end, cluster_size, size_bytes, .. } = *visible;
    if !has_content(&piece.state) {
        return;
    }
    let start = start.get();
    let stored = size_bytes.saturating_sub(start).min(into.len() as u64);
    let into = &mut into[..stored as usize];
    let end = start.saturating_add(into.len() as u64);
    // Go cluster by cluster, beginning with the cluster that holds the first byte.
    let mut at = (start & !cluster_size.mask()).max(piece.start);
    while at < end {
        let next = (at + 1).next_multiple_of(cluster_size.bytes()).min(piece_end);
        match piece.state {
            // An allocated cluster without a write.
            PieceState::Normal(_, WriteNumber::NONE) => {}
            PieceState::Normal(_, write) => {
                expect_write(model, visible, (at, next), write, start, into);
            }
            PieceState::Compressed(write, content) => {
                overlay_stamp(into, start, at, write);
                let behind = at + STAMP_BYTES as u64;
                overlay(into, start, behind, model.compressed_content(visible, content));
            }
            _ => {}
        }
        at = next;
    }
}

/// Copies the data of a write in a cluster, or in a part of it from `at` to `next`, that overlap `into` (which begins
/// at `start`).
fn expect_write(
    model: &Model,
    visible: &Visible,
    (at, next): (u64, u64),
    write: WriteNumber,
    start: u64,
    into: &mut [u8],
) {
    let cluster_size = visible.cluster_size;
    match write.content() {
        WriteContent::Stamped => expect_stamped(cluster_size, (at, next), write, start, into),
        WriteContent::Look(look) => {
            let MadeLook { form, sector } = looks::made(look);
            let edges = LookOfCluster::new(form.is_at_end, cluster_size);
            overlay(into, start, at + edges.sector_at, sector);
            let edge = edges.stamp_at.map(|edge| at + edge);
            edge.into_iter().for_each(|edge| overlay_stamp(into, start, edge, write));
            overlay_fill(into, start, at, write, edges.between(cluster_size));
        }
        WriteContent::Deep => {
            expect_stamped(cluster_size, (at, next), write, start, into);
            let Some(deep) = DeepCluster::new(cluster_size) else { return };
            for inner in deep.inner_stamps() {
                overlay_stamp(into, start, at + inner, write);
            }
            let (tail_at, tail) = deep.tail_fill(GuestOffset::new(at), write);
            overlay(into, start, at + tail_at, tail);
        }
        WriteContent::Unstamped(index) => {
            let data = model.unstamped(visible, index);
            data.into_iter().for_each(|data| expect_unstamped(data, (at, next), start, into));
        }
    }
}

/// Copies the stamps at the edges of a piece of data from `at` to `next` in one cluster, and the fill between them.
fn expect_stamped(
    cluster_size: ClusterSize,
    (at, next): (u64, u64),
    write: WriteNumber,
    start: u64,
    into: &mut [u8],
) {
    for edge in [at, next - STAMP_BYTES as u64] {
        overlay_stamp(into, start, edge, write);
    }
    let cluster = at & !cluster_size.mask();
    let piece = (at - cluster) as usize..(next - cluster) as usize;
    overlay_fill(into, start, cluster, write, between_stamps(&piece));
}

/// Copies the data without stamps of a cluster from `at` to `next`.
fn expect_unstamped(data: &UnstampedData, (at, next): (u64, u64), start: u64, into: &mut [u8]) {
    let most = MAX_UNSTAMPED_BYTES.min((next - at) as usize);
    let covered = at..at + data.covered_bytes(most) as u64;
    let (from, to) = (covered.start.max(start), covered.end.min(start + into.len() as u64));
    if from < to {
        data.fill(from - at, &mut into[(from - start) as usize..(to - start) as usize]);
    }
}

/// Copies the part of the stamp at `edge` that overlaps `into` (which begins at `start`).
#[inline]
fn overlay_stamp(into: &mut [u8], start: u64, edge: u64, write: WriteNumber) {
    if edge < start + into.len() as u64 && edge + STAMP_BYTES as u64 > start {
        overlay(into, start, edge, &stamp(GuestOffset::new(edge), write));
    }
}

/// Copies the fill of a part of the cluster at `cluster` that overlaps `content` (which begins at `start`).
fn overlay_fill(
    content: &mut [u8],
    start: u64,
    cluster: u64,
    write: WriteNumber,
    part: Range<usize>,
) {
    let at = cluster + part.start as u64;
    overlay(content, start, at, fill(GuestOffset::new(cluster), write, part));
}

/// Copies the part of `bytes` (which begin at `at`) that overlaps `content` (which begins at `start`).
fn overlay(content: &mut [u8], start: u64, at: u64, bytes: &[u8]) {
    let skipped = start.saturating_sub(at) as usize;
    let target = at.saturating_sub(start) as usize;
    if skipped >= bytes.len() || target >= content.len() {
        return;
    }
    let length = (bytes.len() - skipped).min(content.len() - target);
    content[target..target + length].copy_from_slice(&bytes[skipped..skipped + length]);
}

fn mismatch(
    guest: GuestOffset,
    state: &PieceState,
    actual: &[u8],
    detail: impl FnOnce() -> String,
) -> OracleResult {
    let found = match actual {
        [head @ .., _, _, _, _] if actual.len() == STAMP_BYTES => {
            let checksum = crc32fast::hash(head).to_be_bytes();
            match (actual.ends_with(&checksum), actual.iter().all(|byte| *byte == 0)) {
                (true, _) => "another stamp",
                (_, true) => "zeros",
                _ => "other bytes",
            }
        }
        _ => "other bytes",
    };
    violation_at(guest, ORACLE, kind(state), ("what was written", found), detail)
}

fn kind(state: &PieceState) -> &'static str {
    match state {
        PieceState::Unallocated => "unallocated",
        PieceState::UnallocatedInside(_) => "unallocated subcluster",
        PieceState::ZeroPlain => "zero-plain",
        PieceState::ZeroAllocated(_) => "zero-allocated",
        PieceState::Normal(..) => "normal",
        PieceState::Compressed(..) => "compressed",
    }
}
