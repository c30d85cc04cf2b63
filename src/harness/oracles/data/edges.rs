//! Short reads at the edges of the data: where the parts of a disk begin and end, where compressed clusters begin, and
//! across the edges between layers. In each deep cluster, two reads are behind its first 64 KiB.

use std::ops::ControlFlow;

use crate::disk::offsets::GuestOffset;
use crate::harness::engine::EngineQuestion;
use crate::harness::model::{Model, PieceState, Visible};
use crate::harness::oracles::{
    OracleResult, POISON, SetAside, go_on, unexpected_error, violation_at,
};
use crate::images::content::fill::DeepCluster;
use crate::images::content::{STAMP_BYTES, WriteContent, WriteNumber, stamp};

use super::{GuestRead, ORACLE, admit_in, expect_of, first_differing, kind, mismatch, too_deep};

/// A short read at an edge.
#[derive(Clone, Copy, Debug)]
pub enum EdgeRead<'v> {
    /// A read of one stamp's length at this guest offset, at an edge of a part of the disk.
    Part(&'v Visible, u64),
    /// A read across the edge between the parts of two layers, half of the bytes from each.
    Seam(&'v Visible, &'v Visible),
}

/// The bytes that are read on each side of a seam.
const SEAM_HALF: usize = 8;

impl EdgeRead<'_> {
    /// Returns the guest offset and the number of bytes.
    pub fn range(self) -> (GuestOffset, usize) {
        match self {
            Self::Part(_, at) => (GuestOffset::new(at), STAMP_BYTES),
            Self::Seam(_, after) => (seam_start(after), 2 * SEAM_HALF),
        }
    }

    /// Reports whether some of the bytes are compressed.
    pub fn is_compressed(self) -> bool {
        let is = |visible: &Visible| matches!(visible.piece.state, PieceState::Compressed(..));
        match self {
            Self::Part(visible, _) => is(visible),
            Self::Seam(before, after) => is(before) || is(after),
        }
    }

    /// Returns the question.
    pub fn question(self) -> EngineQuestion {
        let (start, length) = self.range();
        EngineQuestion::Read(start, length)
    }

    /// Reads and compares.
    pub fn check(self, read: &mut GuestRead, model: &Model) -> OracleResult {
        match self {
            Self::Part(visible, at) => check_edge(read, model, visible, at),
            Self::Seam(before, after) => check_seam(read, model, (before, after)),
        }
    }
}

/// Makes the reads of [`each_edge`].
pub fn check(
    read: &mut GuestRead,
    model: &Model,
    is_new: impl FnMut(&Visible) -> bool,
    set_aside: &mut SetAside,
) -> OracleResult {
    let mut course = Ok(ControlFlow::Continue(()));
    each_edge(model, is_new, |edge| {
        if let Ok(ControlFlow::Continue(())) = course {
            course = go_on(edge.check(read, model), set_aside);
        }
    });
    course.map(|_| ())
}

/// Adds the questions of [`check`] to `plan`.
pub fn plan(model: &Model, is_new: impl FnMut(&Visible) -> bool, plan: &mut Vec<EngineQuestion>) {
    each_edge(model, is_new, |edge| plan.push(edge.question()));
}

/// Calls `visit` with the reads at both edges of every part of the disk that `is_new` passes, and at the first bytes of
/// every compressed cluster in it, and with those across the edges between layers. A list of them would be allocated in
/// each run.
pub fn each_edge<'m>(
    model: &'m Model,
    mut is_new: impl FnMut(&Visible) -> bool,
    mut visit: impl FnMut(EdgeRead<'m>),
) {
    let mut before: Option<(&Visible, bool)> = None;
    for visible in model.visible() {
        let new = is_new(visible);
        if new {
            each_edge_of(visible, &mut visit);
        }
        if let Some((before, new_before)) = before
            && before.depth != visible.depth
            && (new || new_before)
            && has_seam(before, visible)
        {
            visit(EdgeRead::Seam(before, visible));
        }
        before = Some((visible, new));
    }
}

fn each_edge_of<'m>(visible: &'m Visible, visit: &mut impl FnMut(EdgeRead<'m>)) {
    let Visible { start, end, piece, cluster_size, .. } = *visible;
    let stamp_bytes = STAMP_BYTES as u64;
    let mut add = |at: u64| {
        // The end of the disk or a layer above can cut a piece, and its stamp with it.
        if at >= start && at.saturating_add(stamp_bytes) <= end {
            visit(EdgeRead::Part(visible, at));
        }
    };
    let last = end.saturating_sub(stamp_bytes);
    match piece.state {
        PieceState::Compressed(..) => {
            let first = start.next_multiple_of(cluster_size.bytes());
            (first..end).step_by(cluster_size.bytes_usize()).for_each(&mut add);
            // A layer above may leave visible only the inside of a cluster.
            for (at, cut) in [(start, start > piece.start), (last, end < visible.piece_end)] {
                if cut && !too_deep(visible, at + stamp_bytes) {
                    add(at);
                }
            }
        }
        PieceState::Normal(..) | PieceState::ZeroAllocated(_) => {
            // If a layer above covers the start of the piece, the first visible stamp comes later.
            let later = (start > piece.start).then(|| start.next_multiple_of(cluster_size.bytes()));
            [Some(start), Some(last), later].into_iter().flatten().for_each(&mut add);
            if let PieceState::Normal(_, write) = piece.state
                && write.content() == WriteContent::Deep
            {
                // Programs have few deep clusters (`limits`).
                let first = start & !cluster_size.mask();
                for cluster in (first..end).step_by(cluster_size.bytes_usize()) {
                    let deep = DeepCluster::new(cluster_size);
                    let probes = deep.map(|deep| deep.probes(GuestOffset::new(cluster)));
                    probes.into_iter().flatten().for_each(|inside| add(cluster + inside));
                }
            }
        }
        _ => add(start),
    }
}

/// Returns the first byte of the read across the beginning of `after`.
fn seam_start(after: &Visible) -> GuestOffset {
    GuestOffset::new(after.start.saturating_sub(SEAM_HALF as u64))
}

/// Reports whether a read across the edge between two parts is long enough on both sides, and inflates little.
fn has_seam(before: &Visible, after: &Visible) -> bool {
    let is_short =
        seam_start(after).get() < before.start || after.end - after.start < SEAM_HALF as u64;
    // Compressed data before the seam are read at their own edges.
    let is_inflated = matches!(before.piece.state, PieceState::Compressed(..));
    !is_short && !is_inflated && !too_deep(after, after.start + SEAM_HALF as u64)
}

fn check_seam(
    read: &mut GuestRead,
    model: &Model,
    (before, after): (&Visible, &Visible),
) -> OracleResult {
    const HALF: usize = SEAM_HALF;
    let start = seam_start(after);
    let (mut expected, mut actual) = ([0; 2 * HALF], [POISON; 2 * HALF]);
    let (first, second) = expected.split_at_mut(HALF);
    expect_of(model, before, start, first);
    expect_of(model, after, GuestOffset::new(after.start), second);
    if let Err(error) = read(start, &mut actual) {
        return Err(unexpected_error(ORACLE, "two layers", &error));
    }
    if actual == expected {
        return Ok(());
    }
    for (visible, half) in [(before, 0..HALF), (after, HALF..2 * HALF)] {
        let at = start.get() + half.start as u64;
        admit_in(visible, at, &mut expected[half.clone()], &actual[half]);
    }
    if actual == expected {
        return Ok(());
    }
    let guest = differing_offset(start, &expected, &actual);
    violation_at(guest, ORACLE, "two layers", ("what was written", "other bytes"), || {
        from_offset(start, &expected, &actual)
    })
}

fn check_edge(read: &mut GuestRead, model: &Model, visible: &Visible, at: u64) -> OracleResult {
    let mut actual = [POISON; STAMP_BYTES];
    let guest = GuestOffset::new(at);
    let state = visible.state();
    if let Err(error) = read(guest, &mut actual) {
        return Err(unexpected_error(ORACLE, kind(&state), &error));
    }
    if own_stamp(visible, at) == Some(actual) {
        return Ok(());
    }
    let mut expected = [0; STAMP_BYTES];
    expect_of(model, visible, guest, &mut expected);
    if actual == expected {
        return Ok(());
    }
    admit_in(visible, at, &mut expected, &actual);
    if actual == expected {
        return Ok(());
    }
    let differing = differing_offset(guest, &expected, &actual);
    mismatch(differing, &state, &actual, || from_offset(guest, &expected, &actual))
}

/// Returns the offset of the first byte that differs. The bytes begin at `start`, and are not equal.
fn differing_offset(start: GuestOffset, expected: &[u8], actual: &[u8]) -> GuestOffset {
    start + first_differing(expected, actual).unwrap_or(0) as u64
}

/// Returns the detail about bytes from `start` on.
fn from_offset(start: GuestOffset, expected: &[u8], actual: &[u8]) -> String {
    format!("from {start} on, expected {expected:02x?}\nactual {actual:02x?}")
}

/// Returns the stamp that a piece has at its edge, or the zeros that fill it. Returns `None` if the content needs a
/// closer look.
#[inline]
fn own_stamp(visible: &Visible, at: u64) -> Option<[u8; STAMP_BYTES]> {
    let Visible { piece, piece_end, cluster_size, size_bytes, .. } = *visible;
    let past = at + STAMP_BYTES as u64;
    let edge = match piece.state {
        PieceState::Normal(..) => at == piece.start || past == piece_end,
        PieceState::Compressed(..) => at & cluster_size.mask() == 0,
        _ => return Some([0; STAMP_BYTES]),
    };
    match piece.state {
        PieceState::Normal(_, write) | PieceState::Compressed(write, _)
            if edge
                && past <= size_bytes
                && write != WriteNumber::NONE
                && write.content() == WriteContent::Stamped =>
        {
            Some(stamp(GuestOffset::new(at), write))
        }
        _ => None,
    }
}
