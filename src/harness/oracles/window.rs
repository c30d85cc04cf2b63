//! The extents of any window are the clipped extents of the whole walk. A walk that stops and resumes at the end of
//! an extent emits the same extents, and so does a second walk. If the whole walk ended early, with an error or at a
//! bound of the harness, the same holds as far as it came. Does not check that the whole walk is right.

use std::ops::Range;

use crate::disk::extent::{Extent, Window};
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::{ErrorKind, OpenDisk};

use super::collector::Collector;
use super::{
    Oracle, OracleResult, Violation, differing_field, partition, unexpected_error, violation,
};

const ORACLE: Oracle = Oracle::drawn("window");

/// The extents of a whole walk, with which other walks of the disk are compared.
#[derive(Clone, Copy, Debug)]
pub struct WholeWalk<'e> {
    /// The extents: they tile the disk or its beginning.
    pub extents: &'e [Extent],
    /// The walk came to the end of the disk. If not, other walks may fail, and stop where it stopped.
    pub is_complete: bool,
}

/// Walks `window`, and compares the extents with `whole`.
pub fn check(
    disk: &mut impl OpenDisk,
    window: Window,
    whole: &[Extent],
    fuel: u64,
    buffer: &mut Vec<Extent>,
) -> OracleResult {
    WholeWalk { extents: whole, is_complete: true }.check(disk, window, fuel, buffer)
}

/// Walks again, stops after `stop_after` extents (at least 1), and resumes at the end of the last one. Both walks
/// together must equal the whole walk.
pub fn check_resumed(
    disk: &mut impl OpenDisk,
    stop_after: usize,
    whole: &[Extent],
    fuel: u64,
    buffer: &mut Vec<Extent>,
) -> OracleResult {
    WholeWalk { extents: whole, is_complete: true }.check_resumed(disk, stop_after, fuel, buffer)
}

impl WholeWalk<'_> {
    /// Walks `window` as far as the whole walk came, and compares the extents.
    ///
    /// # Errors
    /// The oracle found a violation.
    pub fn check(
        self,
        disk: &mut impl OpenDisk,
        window: Window,
        fuel: u64,
        buffer: &mut Vec<Extent>,
    ) -> OracleResult {
        let (window, range) = self.reached(window, disk.virtual_size_bytes());
        let failed = self.walk(disk, window, Collector::new(buffer, fuel))?;
        check_tiling(buffer, &range, failed)?;
        let is_before = |extent: &Extent| extent.end().is_some_and(|end| end.get() <= range.start);
        let first = self.extents.partition_point(is_before);
        compare(&self.extents[first..], buffer, "clip")
    }

    /// Walks again, stops after `stop_after` extents (at least 1), and resumes at the end of the last one.
    ///
    /// # Errors
    /// The oracle found a violation.
    pub fn check_resumed(
        self,
        disk: &mut impl OpenDisk,
        stop_after: usize,
        fuel: u64,
        buffer: &mut Vec<Extent>,
    ) -> OracleResult {
        let (whole, size) = (self.extents, disk.virtual_size_bytes());
        let collector = Collector::new(buffer, fuel).stopping_after(stop_after);
        let failed = self.walk(disk, Window::ALL, collector)?;
        let expected = stop_after.min(whole.len());
        if buffer.len() != expected && !failed {
            return violation(ORACLE, "stopped", ("as many as asked", "another number"), || {
                format!("{} extents, expected {expected}", buffer.len())
            });
        }
        compare(whole, buffer, "repeated")?;
        let stopped = check_tiling(buffer, &(0..size), true);
        let Some(start) = buffer.last().and_then(Extent::end) else { return stopped };
        let (_, left) = whole.split_at(buffer.len().min(whole.len()));
        let (rest, range) = self.reached(Window { start, length_bytes: u64::MAX }, size);
        let failed = self.walk(disk, rest, Collector::new(buffer, fuel))?;
        if buffer.len() != left.len() && !failed {
            return violation(ORACLE, "resumed", ("as many as are left", "another number"), || {
                format!("{} extents from {start} on, expected {}", buffer.len(), left.len())
            });
        }
        compare(left, buffer, "resumed")?;
        stopped?;
        check_tiling(buffer, &range, failed)
    }

    /// Returns the part of a window that the whole walk reached, as a window and as a range of the disk.
    fn reached(self, window: Window, size_bytes: u64) -> (Window, Range<u64>) {
        if self.is_complete {
            let Range { start, end } = window.clipped(size_bytes);
            // The engine clips the window.
            return (window, start.get()..end.get());
        }
        let end = self.extents.last().and_then(Extent::end).map_or(0, GuestOffset::get);
        let Range { start, end } = window.clipped(end.min(size_bytes));
        let range = start.get()..end.get();
        (Window { start, length_bytes: range.end - range.start }, range)
    }

    /// Walks a window. Returns true if the walk failed, as it may if the whole walk did not come to its end.
    fn walk(
        self,
        disk: &mut impl OpenDisk,
        window: Window,
        mut collector: Collector,
    ) -> Result<bool, Box<Violation>> {
        match disk.map(window, &mut collector) {
            Ok(()) => Ok(false),
            Err(error) if self.is_complete || error.kind() == ErrorKind::NotAsked => {
                Err(unexpected_error(ORACLE, "walk", &error))
            }
            Err(_) => Ok(true),
        }
    }
}

/// Checks that the extents tile `range`, or its beginning if the walk ended early.
fn check_tiling(extents: &[Extent], range: &Range<u64>, ended_early: bool) -> OracleResult {
    let tiled = match ended_early {
        true => partition::prefix(extents, range).map(|_| ()),
        false => partition::check(extents, range),
    };
    tiled.map_err(Violation::into_drawn)
}

/// Checks that each actual extent lies in the expected extent of the same index and has the same mapping. If the actual
/// extents also tile a range that begins in the first expected extent, they are the expected ones, clipped: each must
/// end where the next can begin.
fn compare(expected: &[Extent], actual: &[Extent], field: &'static str) -> OracleResult {
    for (whole, part) in expected.iter().zip(actual) {
        let detail = || format!("the whole walk has {whole}\nthis one has {part}");
        let (Some(delta), Some(left)) =
            (part.start.distance_from(whole.start), left_after(whole, part.start))
        else {
            return violation(ORACLE, field, ("the same place", "another"), detail);
        };
        let mapping = whole.mapping.advanced(delta).unwrap_or(whole.mapping);
        if differing_field(&mapping, &part.mapping).is_some() || part.length_bytes > left {
            return violation(ORACLE, field, (whole.mapping.kind(), part.mapping.kind()), detail);
        }
    }
    if actual.len() > expected.len() {
        return violation(ORACLE, field, ("no more extents", "more"), || {
            format!("{} extents, expected {}", actual.len(), expected.len())
        });
    }
    Ok(())
}

/// Returns the number of bytes in an extent from `start` on.
fn left_after(extent: &Extent, start: GuestOffset) -> Option<u64> {
    extent.length_bytes.checked_sub(start.distance_from(extent.start)?)
}
