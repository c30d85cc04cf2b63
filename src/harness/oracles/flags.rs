//! Extents have only combinations of flags that `qemu-img map` can print for one image (QEMU `block/qcow2.c`,
//! `qcow2_co_block_status`). An extent has an offset exactly if `qemu-img map` prints one. The offset has the same
//! place in its sector as the guest offset, and the host range ends within 64 bits. Does not check that the right
//! combination was chosen.

use crate::disk::extent::{Extent, Mapping, MappingStatus};

use super::{OracleResult, SetAside, violation};

/// Checks each extent.
pub fn check(extents: &[Extent], set_aside: &mut SetAside) -> OracleResult {
    extents.iter().try_for_each(|extent| check_one(extent).or_else(&mut *set_aside))
}

fn check_one(extent: &Extent) -> OracleResult {
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
    use super::*;
    use crate::disk::offsets::{GuestOffset, HostOffset};

    fn found(mapping: Mapping) -> Option<String> {
        found_of(mapping, 512)
    }

    fn found_of(mapping: Mapping, length_bytes: u64) -> Option<String> {
        let extent = Extent { start: GuestOffset::ZERO, length_bytes, mapping };
        check_one(&extent).err().map(|violation| violation.fingerprint())
    }

    #[test]
    fn exactly_the_possible_combinations_pass() {
        let mut passing = 0;
        for bits in 0..32u32 {
            let bit = |n: u32| bits & 1 << n != 0;
            let offset = bit(4).then_some(HostOffset::new(4096));
            let (present, zero, data, compressed) = (bit(0), bit(1), bit(2), bit(3));
            let mapping = Mapping { depth: 0, present, zero, data, compressed, offset };
            passing += u32::from(found(mapping).is_none());
        }
        assert_eq!(passing, 6);
    }

    #[test]
    fn impossible_flags_and_crooked_offsets_are_named() {
        let zero_data = Mapping { data: true, ..Mapping::HOLE };
        assert_eq!(found(zero_data).unwrap(), "flags: zero and data, possible → impossible");
        let data = Mapping { present: true, zero: false, data: true, ..Mapping::HOLE };
        assert_eq!(found(data).unwrap(), "flags: offset, possible → impossible");
        let crooked = Mapping { offset: Some(HostOffset::new(4097)), ..data };
        assert_eq!(found(crooked).unwrap(), "flags: offset, aligned like the guest's → not");
    }

    #[test]
    fn a_host_range_ends_within_64_bits() {
        let last = Mapping { present: true, zero: false, data: true, ..Mapping::HOLE };
        let last = Mapping { offset: Some(HostOffset::new(u64::MAX - 511)), ..last };
        assert_eq!(found_of(last, 511), None);
        let past = "flags: host end, within 64 bits → past them";
        assert_eq!(found_of(last, 512).unwrap(), past);
        assert_eq!(found_of(last, 4096).unwrap(), past);
    }
}
