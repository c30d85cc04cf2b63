//! The extents of any window are the clipped extents of the whole walk. A walk that stops and resumes at the end of
//! an extent emits the same extents, and so does a second walk. Does not check that the whole walk is right.

use std::ops::Range;

use crate::disk::extent::{Extent, Window};
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::OpenDisk;

use super::collector::Collector;
use super::{
    Oracle, OracleResult, Violation, differing_field, partition, unexpected_error, violation,
};

const ORACLE: Oracle = Oracle::drawn("window");

/// Walks `window`, and compares the extents with `whole`.
pub fn check(
    disk: &mut impl OpenDisk,
    window: Window,
    whole: &[Extent],
    fuel: u64,
    buffer: &mut Vec<Extent>,
) -> OracleResult {
    let Range { start, end } = window.clipped(disk.virtual_size_bytes());
    let range = start.get()..end.get();
    if let Err(error) = disk.map(window, &mut Collector::new(buffer, fuel)) {
        return Err(unexpected_error(ORACLE, "walk", &error));
    }
    partition::check(buffer, &range).map_err(Violation::into_drawn)?;
    let first =
        whole.partition_point(|extent| extent.end().is_some_and(|end| end.get() <= range.start));
    compare(&whole[first.min(whole.len())..], buffer, "clip")
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
    let collector = &mut Collector::new(buffer, fuel).stopping_after(stop_after);
    if let Err(error) = disk.map(Window::ALL, collector) {
        return Err(unexpected_error(ORACLE, "walk", &error));
    }
    let expected = stop_after.min(whole.len());
    if buffer.len() != expected {
        return violation(ORACLE, "stopped", ("as many as asked", "another number"), || {
            format!("{} extents, expected {expected}", buffer.len())
        });
    }
    compare(whole, buffer, "repeated")?;
    let Some(start) = buffer.last().and_then(Extent::end) else { return Ok(()) };
    let rest = Window { start, length_bytes: u64::MAX };
    if let Err(error) = disk.map(rest, &mut Collector::new(buffer, fuel)) {
        return Err(unexpected_error(ORACLE, "walk", &error));
    }
    if buffer.len() != whole.len() - expected {
        return violation(ORACLE, "resumed", ("as many as are left", "another number"), || {
            format!("{} extents from {start} on, expected {}", buffer.len(), whole.len() - expected)
        });
    }
    compare(&whole[expected..], buffer, "resumed")
}

/// Checks that each actual extent lies in the expected extent of the same index and has the same mapping.
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
