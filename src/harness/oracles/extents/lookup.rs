//! The status of guest bytes, at both edges of every extent, agrees with the extent, and so does the run that begins
//! there. A coarse status must not contradict. Does not check that the extents are right, nor more than some extents of
//! a long run.

use std::ops::ControlFlow;

use crate::disk::extent::Extent;
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::status::{GuestRun, GuestStatus};
use crate::harness::engine::tested::TestedDisk;
use crate::harness::oracles::{
    OracleResult, SetAside, differing_field, go_on, unexpected_error, violation_at,
};

const ORACLE: &str = "lookup";

/// The number of extents of a run that are compared with its status. A coarse run may contain many.
const MAX_COMPARED: usize = 16;

/// Returns the first and the last byte of every extent that `is_new` passes, and the extents from there on. `whole`
/// tiles the disk or its beginning.
pub fn edges(
    whole: &[Extent],
    mut is_new: impl FnMut(&Extent) -> bool,
) -> impl Iterator<Item = (GuestOffset, &[Extent])> {
    let new = whole.iter().enumerate().filter(move |(_, extent)| is_new(extent));
    new.flat_map(|(index, extent)| {
        // Its end lies on the disk (`partition`).
        let last = extent.start + extent.length_bytes.saturating_sub(1);
        let last = (extent.length_bytes > 1).then_some(last);
        let rest = &whole[index..];
        [Some(extent.start), last].into_iter().flatten().map(move |guest| (guest, rest))
    })
}

/// Asks for the [`edges`] of extents.
pub fn check(
    disk: &mut TestedDisk,
    whole: &[Extent],
    is_new: impl FnMut(&Extent) -> bool,
    set_aside: &mut SetAside,
) -> OracleResult {
    // With `try_for_each`, the compiler turns the nested iterators into plain loops. With `for`, it does not.
    let ended = edges(whole, is_new).try_for_each(|(guest, rest)| {
        match go_on(check_byte(disk, guest, rest, u64::MAX), set_aside) {
            Ok(ControlFlow::Continue(())) => ControlFlow::Continue(()),
            Ok(ControlFlow::Break(())) => ControlFlow::Break(Ok(())),
            Err(found) => ControlFlow::Break(Err(found)),
        }
    });
    ended.break_value().unwrap_or(Ok(()))
}

/// Asks for any byte. On the disk, the answer must agree with the extents. Past the end, the engine must refuse it.
pub fn check_point(disk: &mut TestedDisk, guest: GuestOffset, whole: &[Extent]) -> OracleResult {
    if guest.get() >= disk.virtual_size_bytes() {
        return match disk.status(guest) {
            Err(_) => Ok(()),
            Ok(GuestRun { status, .. }) => {
                violation_at(guest, ORACLE, "past the end", ("refused", status.kind()), || {
                    status.to_string()
                })
            }
        };
    }
    // The extents tile the disk (`partition`), so one of them begins at or before each byte, unless the list is empty.
    let after = whole.partition_point(|extent| extent.start <= guest);
    match after.checked_sub(1) {
        Some(index) => check_byte(disk, guest, &whole[index..], u64::MAX),
        None => Ok(()),
    }
}

/// Asks for the byte at `guest`, which lies in the first extent of `rest`. Nothing is known about the disk from `until`
/// on.
pub fn check_byte(
    disk: &mut TestedDisk,
    guest: GuestOffset,
    rest: &[Extent],
    until: u64,
) -> OracleResult {
    let mut run = match disk.status(guest) {
        Ok(run) => run,
        Err(error) => return Err(unexpected_error(ORACLE, "byte", &error)),
    };
    run.length_bytes = run.length_bytes.min(until.saturating_sub(guest.get()));
    let Some(first) = rest.first() else { return Ok(()) };
    let inside = guest.saturating_distance_from(first.start);
    // The byte lies in the extent, whose host range ends within 64 bits (`flags`): nothing is held.
    let expected = first.mapping.advanced(inside).unwrap_or(first.mapping);
    let within = (1..=first.length_bytes.saturating_sub(inside)).contains(&run.length_bytes);
    if within && run.status.admits(&expected, 0) {
        return Ok(());
    }
    check_run(&run, guest, disk.virtual_size_bytes(), rest)
}

/// Compares a run that begins at `guest` with the extents that it meets, and with the end of the disk.
#[cold]
fn check_run(run: &GuestRun, guest: GuestOffset, size_bytes: u64, rest: &[Extent]) -> OracleResult {
    let left = size_bytes.saturating_sub(guest.get());
    if run.length_bytes == 0 || run.length_bytes > left {
        return violation_at(guest, ORACLE, "length", ("on the disk", "another"), || {
            format!("{run}, up to the end there are {left:#x} bytes")
        });
    }
    let end = guest + run.length_bytes;
    let mut met = rest.iter().take_while(|extent| extent.start < end).take(MAX_COMPARED);
    met.try_for_each(|extent| compare(run, guest, extent))
}

/// Compares the status of a run that begins at `guest` with an extent that the run meets.
fn compare(run: &GuestRun, guest: GuestOffset, extent: &Extent) -> OracleResult {
    let status = run.status;
    let common = guest.max(extent.start);
    let inside = common.saturating_distance_from(extent.start);
    let expected = extent.mapping.advanced(inside).unwrap_or(extent.mapping);
    let delta = common.saturating_distance_from(guest);
    if status.admits(&expected, delta) {
        return Ok(());
    }
    let field = match status {
        // A mapping that does not fit differs in some field, unless its host offset would pass 64 bits.
        GuestStatus::Exact(actual) => actual
            .advanced(delta)
            .and_then(|actual| differing_field(&expected, &actual))
            .unwrap_or("offset"),
        _ => "status",
    };
    violation_at(common, ORACLE, field, (expected.kind(), status.kind()), || {
        format!("the walk has {expected}\nthe look-up at {guest} has {run}")
    })
}
