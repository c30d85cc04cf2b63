//! Look-ups at both edges of every extent agree with the walk. Does not check that the walk and the look-ups are
//! right.

use crate::disk::extent::Extent;
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::OpenDisk;

use super::{OracleResult, differing_field, unexpected_error, violation};

const ORACLE: &str = "lookup";

/// Looks up the first and the last byte of every extent that `is_new` passes.
pub fn check(
    disk: &mut impl OpenDisk,
    whole: &[Extent],
    mut is_new: impl FnMut(&Extent) -> bool,
) -> OracleResult {
    for extent in whole.iter().filter(|extent| is_new(extent)) {
        check_byte(disk, extent.start, extent)?;
        if extent.length_bytes > 1 {
            // Its end lies on the disk (`partition`).
            check_byte(disk, extent.start.saturating_add(extent.length_bytes - 1), extent)?;
        }
    }
    Ok(())
}

/// Looks up any byte. On the disk, the answer must agree with the walk. Past the end, the engine must refuse it.
pub fn check_point(disk: &mut impl OpenDisk, guest: GuestOffset, whole: &[Extent]) -> OracleResult {
    if guest.get() >= disk.virtual_size_bytes() {
        return match disk.lookup(guest) {
            Err(_) => Ok(()),
            Ok(mapping) => violation(ORACLE, "past the end", ("refused", mapping.kind()), || {
                format!("guest offset {guest}: {mapping}")
            }),
        };
    }
    // The extents tile the disk (`partition`), so that one begins at or before any byte, unless there is none.
    let after = whole.partition_point(|extent| extent.start <= guest);
    match after.checked_sub(1).and_then(|index| whole.get(index)) {
        Some(extent) => check_byte(disk, guest, extent),
        None => Ok(()),
    }
}

fn check_byte(disk: &mut impl OpenDisk, guest: GuestOffset, extent: &Extent) -> OracleResult {
    let actual = match disk.lookup(guest) {
        Ok(actual) => actual,
        Err(error) => return Err(unexpected_error(ORACLE, "byte", &error)),
    };
    // The byte lies in the extent, whose host range ends within 64 bits (`flags`): nothing is held.
    let delta = guest.saturating_distance_from(extent.start);
    let expected = extent.mapping.advanced(delta).unwrap_or(extent.mapping);
    match differing_field(&expected, &actual) {
        None => Ok(()),
        Some(field) => violation(ORACLE, field, (expected.kind(), actual.kind()), || {
            format!("guest offset {guest}: the walk has {expected}\nthe look-up {actual}")
        }),
    }
}
