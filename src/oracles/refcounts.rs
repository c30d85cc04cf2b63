//! The counts recomputed from the bytes equal the ones on disk, COPIED agrees in the active disk's
//! tables, nothing is leaked, nothing overlaps but what may be shared. Does not check that the tables
//! map what was meant: the model does.

use crate::qcow2::error::MapError;

use super::recount::{Finding, Report, Role};
use super::{Verdict, violation};

const ORACLE: &str = "refcounts";

/// Judges what a recount found.
pub fn check(recounted: Result<&[Report], MapError>) -> Verdict {
    let reports = match recounted {
        Ok(reports) => reports,
        Err(error) => {
            return violation(ORACLE, "image", ("readable", "an error"), || error.to_string());
        }
    };
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
        Some(Role::L2Table) => "L2 table",
        Some(Role::Data) => "data",
        Some(Role::Compressed) => "compressed data",
    }
}
