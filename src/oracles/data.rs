//! Data read through the mapping are those that were written: the stamps at the edges of every piece,
//! zeros where there are none. Does not check what lies between the edges of a piece, except where a
//! program asks to read it; and of large compressed clusters nothing behind their first 16 KiB
//! (`limits::MAX_INFLATED_BYTES`).

use std::ops::Range;

use crate::content::{SHAPED_BYTES, STAMP_BYTES, Shape, WriteNumber, stamp};
use crate::engines::OpenDisk;
use crate::limits::MAX_INFLATED_BYTES;
use crate::model::{Model, Piece, State};
use crate::qcow2::header::Geometry;
use crate::qcow2::units::GuestOffset;

use super::{Verdict, unexpected_error, violation};

const ORACLE: &str = "data";

/// Reads both edges of every piece of the model, and the first bytes of every compressed cluster.
pub fn check(disk: &mut impl OpenDisk, model: &Model, geometry: &Geometry) -> Verdict {
    let stamp_bytes = STAMP_BYTES as u64;
    let size = model.virtual_size_bytes();
    for (piece, end) in model.pieces() {
        // The end of the disk may cut a piece, and its stamp with it.
        let readable = |at: u64| at + stamp_bytes <= size;
        match piece.state {
            State::Compressed(..) => {
                let clusters =
                    (piece.start..end.min(size)).step_by(geometry.cluster_size.bytes_usize());
                for cluster in clusters.filter(|at| readable(*at)) {
                    check_edge(disk, &piece, cluster)?;
                }
            }
            State::Normal(..) | State::ZeroAllocated(_) => {
                for edge in [piece.start, end - stamp_bytes] {
                    if readable(edge) {
                        check_edge(disk, &piece, edge)?;
                    }
                }
            }
            _ if readable(piece.start) && end - piece.start >= stamp_bytes => {
                check_edge(disk, &piece, piece.start)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_edge(disk: &mut impl OpenDisk, piece: &Piece, at: u64) -> Verdict {
    let mut actual = [0xA5; STAMP_BYTES];
    let guest = GuestOffset::new(at);
    if let Err(error) = disk.read(guest, &mut actual) {
        return Err(unexpected_error(ORACLE, kind(&piece.state), &error));
    }
    let expected = match piece.state {
        State::Normal(_, write) | State::Compressed(write, _) => stamp(guest, write),
        _ => [0; STAMP_BYTES],
    };
    if actual == expected {
        return Ok(());
    }
    mismatch(&piece.state, &actual, || {
        format!("guest offset {guest}: expected {expected:02x?}\nactual {actual:02x?}")
    })
}

/// What [`check_range`] needs, reused from range to range.
#[derive(Debug, Default)]
pub struct Buffers {
    expected: Vec<u8>,
    actual: Vec<u8>,
    /// One compressed cluster.
    content: Vec<u8>,
}

/// Whether reading a range would inflate more of a compressed cluster than the loop can afford.
pub fn costly(model: &Model, geometry: &Geometry, start: GuestOffset, length_bytes: usize) -> bool {
    let last = start.get().saturating_add(length_bytes as u64).saturating_sub(1);
    let deep = |byte: u64| byte & geometry.cluster_size.mask() >= MAX_INFLATED_BYTES;
    let compressed = |byte: u64| matches!(model.state_at(byte), State::Compressed(..));
    [start.get(), last].into_iter().any(|byte| deep(byte) && compressed(byte))
}

/// Reads any range of the disk and compares every byte. Past the end it must be refused.
pub fn check_range(
    disk: &mut impl OpenDisk,
    model: &Model,
    geometry: &Geometry,
    start: GuestOffset,
    length_bytes: usize,
    buffers: &mut Buffers,
) -> Verdict {
    let Buffers { expected, actual, content } = buffers;
    actual.clear();
    actual.resize(length_bytes, 0xA5);
    let past_end = start.get().saturating_add(length_bytes as u64) > model.virtual_size_bytes();
    match (disk.read(start, actual), past_end) {
        (Err(_), true) => return Ok(()),
        (Ok(()), true) => {
            return violation(ORACLE, "past the end", ("refused", "an answer"), || {
                format!("{length_bytes} bytes at guest offset {start}")
            });
        }
        (Err(error), false) => return Err(unexpected_error(ORACLE, "range", &error)),
        (Ok(()), false) => {}
    }
    expected.clear();
    expected.resize(length_bytes, 0);
    expect_with(model, geometry, start, expected, content);
    if expected == actual {
        return Ok(());
    }
    admit_inner_stamps(model, geometry, start, expected, actual);
    if expected == actual {
        return Ok(());
    }
    let differing = expected.iter().zip(actual.iter()).position(|(one, other)| one != other);
    let at = differing.unwrap_or(0);
    let guest = start.get() + at as u64;
    mismatch(&model.state_at(guest), &actual[at..], || {
        format!("guest offset {guest}: expected {:#04x}, actual {:#04x}", expected[at], actual[at])
    })
}

/// What a guest reads from `start` on, by the model: stamps, shapes and zeros. `into` is zeroed and
/// ends at the end of the disk at most.
pub fn expect(model: &Model, geometry: &Geometry, start: GuestOffset, into: &mut [u8]) {
    expect_with(model, geometry, start, into, &mut Vec::new());
}

/// Adds to what is expected from `start` on the stamps of the right write that `actual` has at inner
/// edges of subclusters. Where a host cluster is shared with a snapshot in which the subclusters of one
/// write are several pieces, the edges of those are stamped too.
pub fn admit_inner_stamps(
    model: &Model,
    geometry: &Geometry,
    start: GuestOffset,
    expected: &mut [u8],
    actual: &[u8],
) {
    if !geometry.extended_l2 {
        return;
    }
    let cell = geometry.cell_bytes();
    let range = start.get()..start.get().saturating_add(expected.len() as u64);
    for (piece, end) in model.pieces() {
        let State::Normal(_, write) = piece.state else { continue };
        let first = (range.start / cell * cell).max(piece.start);
        for at in (first..end.min(range.end)).step_by(cell as usize) {
            for edge in [at, at + cell - STAMP_BYTES as u64] {
                let stamp = stamp(GuestOffset::new(edge), write);
                if cut(actual, range.start, edge).is_some_and(|(cut, part)| cut == &stamp[part]) {
                    overlay(expected, range.start, edge, &stamp);
                }
            }
        }
    }
}

/// Of a stamp at `at`, what falls into `content`, which lies at `start`: the bytes there, and which
/// part of the stamp they are.
fn cut(content: &[u8], start: u64, at: u64) -> Option<(&[u8], Range<usize>)> {
    let skipped = start.saturating_sub(at) as usize;
    let target = at.saturating_sub(start) as usize;
    let length = STAMP_BYTES.checked_sub(skipped)?.min(content.len().checked_sub(target)?);
    Some((&content[target..target + length], skipped..skipped + length))
}

/// The same, with a buffer for one compressed cluster.
fn expect_with(
    model: &Model,
    geometry: &Geometry,
    start: GuestOffset,
    into: &mut [u8],
    content: &mut Vec<u8>,
) {
    let cluster_bytes = geometry.cluster_size.bytes();
    let range = start.get()..start.get().saturating_add(into.len() as u64);
    for (piece, end) in model.pieces() {
        let (first, last) = (piece.start.max(range.start), end.min(range.end));
        if !matches!(piece.state, State::Normal(..) | State::Compressed(..)) || first >= last {
            continue;
        }
        // Cluster by cluster, from the one that holds the first byte.
        let mut at = (first / cluster_bytes * cluster_bytes).max(piece.start);
        while at < last {
            let next = (at + 1).next_multiple_of(cluster_bytes).min(end);
            match piece.state {
                State::Normal(_, write) => {
                    for edge in [at, next - STAMP_BYTES as u64] {
                        let stamp = stamp(GuestOffset::new(edge), write);
                        overlay(into, range.start, edge, &stamp);
                    }
                }
                State::Compressed(write, shape) => {
                    fill_compressed(content, geometry, at, write, shape);
                    overlay(into, range.start, at, content);
                }
                _ => {}
            }
            at = next;
        }
    }
}

/// What a compressed cluster holds: its stamp and what its shape fills. Behind that there are zeros.
fn fill_compressed(
    content: &mut Vec<u8>,
    geometry: &Geometry,
    cluster: u64,
    write: WriteNumber,
    shape: Shape,
) {
    content.resize(geometry.cluster_size.bytes_usize().min(STAMP_BYTES + SHAPED_BYTES), 0);
    let (head, rest) = content.split_at_mut(STAMP_BYTES);
    head.copy_from_slice(&stamp(GuestOffset::new(cluster), write));
    shape.fill(rest);
}

/// Copies the part of `bytes`, which lie at `at`, that falls into `content`, which lies at `start`.
fn overlay(content: &mut [u8], start: u64, at: u64, bytes: &[u8]) {
    let skipped = start.saturating_sub(at) as usize;
    let target = at.saturating_sub(start) as usize;
    if skipped >= bytes.len() || target >= content.len() {
        return;
    }
    let length = (bytes.len() - skipped).min(content.len() - target);
    content[target..target + length].copy_from_slice(&bytes[skipped..skipped + length]);
}

fn mismatch(state: &State, actual: &[u8], told: impl FnOnce() -> String) -> Verdict {
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
    violation(ORACLE, kind(state), ("what was written", found), told)
}

fn kind(state: &State) -> &'static str {
    match state {
        State::Unallocated => "unallocated",
        State::UnallocatedInside(_) => "unallocated subcluster",
        State::ZeroPlain => "zero-plain",
        State::ZeroAllocated(_) => "zero-allocated",
        State::Normal(..) => "normal",
        State::Compressed(..) => "compressed",
    }
}
