//! The extents equal the reference model's, field by field. Does not check where compressed data
//! lie, which extents do not say: `data` and `refcounts` do.

use crate::extent::Extent;

use super::{Verdict, differing_field, kind, violation};

const ORACLE: &str = "model";

/// Compares the extents of the whole disk. Both tile it.
pub fn check(expected: &[Extent], actual: &[Extent]) -> Verdict {
    let differing = expected.iter().zip(actual).find(|(expected, actual)| expected != actual);
    if let Some((expected, actual)) = differing {
        let told = || format!("expected {expected:?}\nactual   {actual:?}");
        let kinds = (kind(&expected.mapping), kind(&actual.mapping));
        return match differing_field(&expected.mapping, &actual.mapping) {
            Some(field) => violation(ORACLE, field, kinds, told),
            None if actual.length_bytes < expected.length_bytes => {
                violation(ORACLE, "length", (kind(&expected.mapping), "shorter"), told)
            }
            None => violation(ORACLE, "length", (kind(&expected.mapping), "longer"), told),
        };
    }
    if expected.len() != actual.len() {
        let more = actual.len() > expected.len();
        return violation(ORACLE, "extents", ("all", if more { "more" } else { "fewer" }), || {
            format!("expected {} extents, actual {}", expected.len(), actual.len())
        });
    }
    Ok(())
}

/// The size of the disk.
pub fn check_size(expected: u64, actual: u64) -> Verdict {
    if expected == actual {
        return Ok(());
    }
    let kind = if actual < expected { "smaller" } else { "larger" };
    violation(ORACLE, "virtual size", ("the journal's", kind), || {
        format!("expected {expected} bytes, actual {actual}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::Mapping;
    use crate::qcow2::units::{GuestOffset, HostOffset};

    fn normal(start: u64, length_bytes: u64, host: u64) -> Extent {
        let data = Mapping { present: true, zero: false, data: true, ..Mapping::HOLE };
        let mapping = Mapping { offset: Some(HostOffset::new(host)), ..data };
        Extent { start: GuestOffset::new(start), length_bytes, mapping }
    }

    #[test]
    fn differences_are_named_by_field_and_kind() {
        let expected = [normal(0, 512, 4096), normal(512, 512, 8192)];
        let found = |actual: &[Extent]| check(&expected, actual).unwrap_err().fingerprint();
        assert!(check(&expected, &expected).is_ok());
        let hole = Extent { mapping: Mapping::HOLE, ..expected[0] };
        assert_eq!(found(&[hole, expected[1]]), "model: kind, normal → unallocated");
        let elsewhere = normal(512, 512, 8704);
        assert_eq!(found(&[expected[0], elsewhere]), "model: offset, normal → normal");
        assert_eq!(found(&[normal(0, 511, 4096)]), "model: length, normal → shorter");
        assert_eq!(found(&expected[..1]), "model: extents, all → fewer");
        assert!(check_size(512, 1024).is_err());
    }
}
