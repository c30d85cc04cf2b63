//! The counts recomputed from the bytes equal the ones on disk, COPIED agrees in the active disk's
//! tables, nothing is leaked, nothing overlaps but what may be shared, and nothing lies past the end of the file. Does not check that the tables
//! map what was meant: the model does.

use crate::storage::Storage;

use super::recount::{Finding, Recount, Report, Role};
use super::{Verdict, violation};

const ORACLE: &str = "refcounts";

/// Recounts the image in `storage`.
pub fn check<S: Storage + ?Sized>(recount: &mut Recount, storage: &S) -> Verdict {
    match recount.recount(storage) {
        Ok(reports) => check_reports(reports)?,
        Err(error) => {
            return violation(ORACLE, "image", ("readable", "an error"), || error.to_string());
        }
    }
    match recount.past_end().next() {
        None => Ok(()),
        Some((past, clusters)) => {
            violation(ORACLE, role(Some(past)), ("in the file", "past its end"), || {
                format!("clusters {clusters:?}, the file has {} bytes", storage.length_bytes())
            })
        }
    }
}

fn check_reports(reports: &[Report]) -> Verdict {
    let Some(report) = reports.first() else { return Ok(()) };
    let kinds = match report.finding {
        Finding::Leak if report.references == 0 => ("free", "counted"),
        Finding::Leak => ("the references", "more"),
        Finding::Corruption => ("the references", "fewer"),
        Finding::Copied if report.references == 1 => ("not copied", "copied"),
        Finding::Copied => ("copied", "not copied"),
        Finding::Overlap => ("a cluster of its own", "an overlap"),
    };
    violation(ORACLE, role(report.role), kinds, || format!("{report:?}, {} in all", reports.len()))
}

fn role(role: Option<Role>) -> &'static str {
    match role {
        None => "unreferenced cluster",
        Some(Role::Header) => "header",
        Some(Role::RefcountTable) => "refcount table",
        Some(Role::RefcountBlock) => "refcount block",
        Some(Role::L1Table) => "L1 table",
        Some(Role::SnapshotTable) => "snapshot table",
        Some(Role::BitmapDirectory) => "bitmap directory",
        Some(Role::BitmapTable) => "bitmap table",
        Some(Role::BitmapData) => "bitmap data",
        Some(Role::L2Table) => "L2 table",
        Some(Role::Data) => "data",
        Some(Role::Compressed) => "compressed data",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::Walker;
    use crate::harness::Harness;
    use crate::qcow2::units::HostOffset;

    #[test]
    fn a_file_that_ends_too_early_is_found() {
        let text = "image version=3 cluster_bits=9 refcount_order=4 features=none size=90<<9+0 \
                    rng_seed=0 blocks=first table=first tolerance=0\nreserve gap=9<<0\n\
                    write at=start+0 clusters=9";
        let program = crate::vm::text::assemble(text).unwrap();
        let mut harness = Harness::new(Walker::default());
        let image = harness.build(&program.encode());
        let mut file = vec![0; image.length_bytes() as usize];
        image.read_at(HostOffset::ZERO, &mut file).unwrap();
        let mut recount = Recount::new();
        assert!(check(&mut recount, file.as_slice()).is_ok());
        // The refcount structures lie in the gap, data at the end. One cluster may be missing.
        file.truncate(file.len() - 1024);
        let found = check(&mut recount, file.as_slice()).unwrap_err();
        assert_eq!(found.fingerprint(), "refcounts: data, in the file → past its end");
    }
}
