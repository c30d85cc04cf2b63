//! Three rules for the extents of one walk. They need neither the reference model nor another walk.
//!
//! `partition`: the extents tile the window. Does not check the mapping of the bytes.
//!
//! `maximal`: no two neighbours could be one extent, unless their data lie in two files. Does not check that merged
//! extents belong together: the model does.
//!
//! `flags`: extents have only combinations of flags that `qemu-img map` can print for one image (QEMU `block/qcow2.c`,
//! `qcow2_co_block_status`). An extent has an offset exactly if `qemu-img map` prints one. The offset has the same
//! place in its sector as the guest offset, and the host range ends within 64 bits. Does not check that the right
//! combination was chosen.

pub mod lookup;
pub mod model;
pub mod window;

use std::ops::Range;

use crate::disk::extent::{Extent, Mapping, MappingStatus};

use super::{OracleResult, SetAside, violation};

const PARTITION: &str = "partition";

/// Checks that `extents` tile `range`: the first begins at its start, each begins at the end of the one before, none
/// is empty or exceeds 64 bits, and the last ends at its end. An empty range has no extents.
pub fn check_partition(extents: &[Extent], range: &Range<u64>) -> OracleResult {
    let at = check_prefix(extents, range)?;
    if at < range.end {
        let kinds = ("the window's end", "short of it");
        return violation(PARTITION, "end", kinds, || {
            format!("the last extent ends at {at}, the window at {}", range.end)
        });
    }
    Ok(())
}

/// Checks the extents of a walk that was stopped: they tile the beginning of `range`. Returns their end.
pub fn check_prefix(extents: &[Extent], range: &Range<u64>) -> OracleResult<u64> {
    let mut at = range.start;
    for (index, extent) in extents.iter().enumerate() {
        let detail = || format!("extent {index}: {extent}, expected to start at {at}");
        let start = extent.start.get();
        if start != at {
            let kind = if start < at { "an overlap" } else { "a gap" };
            violation(PARTITION, "start", ("the last end", kind), detail)?;
        }
        if extent.length_bytes == 0 {
            violation(PARTITION, "length", ("at least 1", "0"), detail)?;
        }
        match extent.end().map(|end| end.get()) {
            None => violation(PARTITION, "end", ("within 64 bits", "past them"), detail)?,
            Some(end) if end > range.end => {
                violation(PARTITION, "end", ("the window's end", "past it"), detail)?;
            }
            Some(end) => at = end,
        }
    }
    Ok(at)
}

/// Checks `extents`, which tile the disk. Another file may begin at each of `file_edges`, which are guest offsets.
pub fn check_maximal(
    extents: &[Extent],
    file_edges: &[u64],
    set_aside: &mut SetAside,
) -> OracleResult {
    for pair in extents.windows(2) {
        let [here, next] = pair else { continue };
        let is_one = here.mapping.continues_as(here.length_bytes, &next.mapping);
        let is_file_edge =
            || next.mapping.offset.is_some() && file_edges.contains(&next.start.get());
        if is_one && !is_file_edge() {
            let kind = here.mapping.kind();
            let found =
                violation("maximal", kind, ("one extent", "two"), || format!("{here} and {next}"));
            found.or_else(&mut *set_aside)?;
        }
    }
    Ok(())
}

/// Checks each extent.
pub fn check_flags(extents: &[Extent], set_aside: &mut SetAside) -> OracleResult {
    extents.iter().try_for_each(|extent| check_flags_of(extent).or_else(&mut *set_aside))
}

fn check_flags_of(extent: &Extent) -> OracleResult {
    let detail = || format!("{extent}");
    // No engine is asked for host holes.
    if matches!(extent.mapping.status(), MappingStatus::Impossible | MappingStatus::HostHole) {
        let Mapping { present, zero, data, compressed, .. } = extent.mapping;
        let field = match (present, zero, data, compressed) {
            (_, true, true, _) | (_, false, false, _) => "zero and data",
            (false, _, true, _) => "present and data",
            (_, _, false, true) => "compressed and data",
            _ => "offset",
        };
        return violation("flags", field, ("possible", "impossible"), detail);
    }
    if let Some(offset) = extent.mapping.offset
        && offset.get() % 512 != extent.start.get() % 512
    {
        return violation("flags", "offset", ("aligned like the guest's", "not"), detail);
    }
    match extent.mapping.advanced(extent.length_bytes) {
        Some(_) => Ok(()),
        None => violation("flags", "host end", ("within 64 bits", "past them"), detail),
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::offsets::{GuestOffset, HostOffset};

    use super::*;

    fn extents_of(ranges: &[(u64, u64)]) -> Vec<Extent> {
        let extent = |&(start, length_bytes): &(u64, u64)| Extent {
            start: GuestOffset::new(start),
            length_bytes,
            mapping: Mapping::HOLE,
        };
        ranges.iter().map(extent).collect()
    }

    fn partition_found(ranges: &[(u64, u64)], window: Range<u64>) -> String {
        check_partition(&extents_of(ranges), &window).unwrap_err().fingerprint()
    }

    #[test]
    fn a_tiling_passes() {
        assert!(check_partition(&extents_of(&[(5, 5), (10, 90)]), &(5..100)).is_ok());
        assert!(check_partition(&[], &(7..7)).is_ok());
    }

    #[test]
    fn every_way_not_to_tile_is_found() {
        let end = "partition: end, the window's end → ";
        assert_eq!(partition_found(&[], 0..1), format!("{end}short of it"));
        assert_eq!(partition_found(&[(0, 5)], 0..6), format!("{end}short of it"));
        assert_eq!(partition_found(&[(0, 7)], 0..6), format!("{end}past it"));
        let start = "partition: start, the last end → ";
        assert_eq!(partition_found(&[(1, 5)], 0..6), format!("{start}a gap"));
        assert_eq!(partition_found(&[(0, 5), (4, 2)], 0..6), format!("{start}an overlap"));
        assert_eq!(
            partition_found(&[(0, 3), (3, 0), (3, 3)], 0..6),
            "partition: length, at least 1 → 0"
        );
        let overflow = partition_found(&[(0, 3), (3, u64::MAX)], 0..6);
        assert_eq!(overflow, "partition: end, within 64 bits → past them");
        assert_eq!(partition_found(&[(0, 1)], 0..0), format!("{end}past it"));
    }

    fn is_maximal(extents: &[Extent], file_edges: &[u64]) -> OracleResult {
        check_maximal(extents, file_edges, &mut Err)
    }

    #[test]
    fn a_merge_that_was_missed_is_found() {
        let data = Mapping { present: true, zero: false, data: true, ..Mapping::HOLE };
        let normal = |start: u64, host: u64| Extent {
            start: GuestOffset::new(start),
            length_bytes: 512,
            mapping: Mapping { offset: Some(HostOffset::new(host)), ..data },
        };
        assert!(is_maximal(&[normal(0, 4096), normal(512, 8192)], &[]).is_ok());
        let found = is_maximal(&[normal(0, 4096), normal(512, 4608)], &[]).unwrap_err();
        assert_eq!(found.fingerprint(), "maximal: normal, one extent → two");
        let hole = |start| Extent { mapping: Mapping::HOLE, ..normal(start, 0) };
        assert!(is_maximal(&[hole(0), hole(512)], &[512]).is_err());
        assert!(is_maximal(&[hole(0), normal(512, 512)], &[]).is_ok());
        assert!(is_maximal(&[normal(0, 4096), normal(512, 4608)], &[512]).is_ok());
    }

    fn flags_found(mapping: Mapping) -> Option<String> {
        flags_found_of(mapping, 512)
    }

    fn flags_found_of(mapping: Mapping, length_bytes: u64) -> Option<String> {
        let extent = Extent { start: GuestOffset::ZERO, length_bytes, mapping };
        check_flags_of(&extent).err().map(|violation| violation.fingerprint())
    }

    #[test]
    fn exactly_the_possible_combinations_pass() {
        let mut passing = 0;
        for bits in 0..32u32 {
            let bit = |n: u32| bits & 1 << n != 0;
            let offset = bit(4).then_some(HostOffset::new(4096));
            let (present, zero, data, compressed) = (bit(0), bit(1), bit(2), bit(3));
            let mapping = Mapping { depth: 0, present, zero, data, compressed, offset };
            passing += u32::from(flags_found(mapping).is_none());
        }
        assert_eq!(passing, 6);
    }

    #[test]
    fn impossible_flags_and_crooked_offsets_are_named() {
        let zero_data = Mapping { data: true, ..Mapping::HOLE };
        assert_eq!(flags_found(zero_data).unwrap(), "flags: zero and data, possible → impossible");
        let data = Mapping { present: true, zero: false, data: true, ..Mapping::HOLE };
        assert_eq!(flags_found(data).unwrap(), "flags: offset, possible → impossible");
        let crooked = Mapping { offset: Some(HostOffset::new(4097)), ..data };
        assert_eq!(flags_found(crooked).unwrap(), "flags: offset, aligned like the guest's → not");
    }

    #[test]
    fn a_host_range_ends_within_64_bits() {
        let last = Mapping { present: true, zero: false, data: true, ..Mapping::HOLE };
        let last = Mapping { offset: Some(HostOffset::new(u64::MAX - 511)), ..last };
        assert_eq!(flags_found_of(last, 511), None);
        let past = "flags: host end, within 64 bits → past them";
        assert_eq!(flags_found_of(last, 512).unwrap(), past);
        assert_eq!(flags_found_of(last, 4096).unwrap(), past);
    }
}
