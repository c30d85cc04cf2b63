//! Extents are maximal: no two neighbours could be one extent, unless their data lie in two files. Does not check that
//! merged extents belong together: the model does.

use crate::disk::extent::Extent;

use super::{OracleResult, SetAside, violation};

/// Checks `extents`, which tile the disk. Another file may begin at each of `file_edges`, which are guest offsets.
pub fn check(extents: &[Extent], file_edges: &[u64], set_aside: &mut SetAside) -> OracleResult {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(extents: &[Extent], file_edges: &[u64]) -> OracleResult {
        super::check(extents, file_edges, &mut Err)
    }

    use crate::disk::extent::Mapping;
    use crate::disk::offsets::{GuestOffset, HostOffset};

    #[test]
    fn a_merge_that_was_missed_is_found() {
        let data = Mapping { present: true, zero: false, data: true, ..Mapping::HOLE };
        let normal = |start: u64, host: u64| Extent {
            start: GuestOffset::new(start),
            length_bytes: 512,
            mapping: Mapping { offset: Some(HostOffset::new(host)), ..data },
        };
        assert!(check(&[normal(0, 4096), normal(512, 8192)], &[]).is_ok());
        let found = check(&[normal(0, 4096), normal(512, 4608)], &[]).unwrap_err();
        assert_eq!(found.fingerprint(), "maximal: normal, one extent → two");
        let hole = |start| Extent { mapping: Mapping::HOLE, ..normal(start, 0) };
        assert!(check(&[hole(0), hole(512)], &[512]).is_err());
        assert!(check(&[hole(0), normal(512, 512)], &[]).is_ok());
        assert!(check(&[normal(0, 4096), normal(512, 4608)], &[512]).is_ok());
    }
}
