//! The refcounts that the recount computes equal the counts on disk. COPIED agrees with them in the active disk's
//! tables. No cluster is leaked, no structures overlap except those that may share clusters, and nothing lies past
//! the end of the file. Counts that the program left out of date must be found, each once, and no others. Does not
//! check that the tables map the right clusters: the model does.

use std::ops::Range;

use crate::base::ranges::RangeMap;
use crate::disk::storage::Storage;
use crate::images::files::Deviation;

use super::recount::{Recount, RefcountFault, RefcountReport, Role};
use crate::harness::oracles::{OracleResult, SetAside, Violation, disagreement};

const ORACLE: &str = "refcounts";

/// Recounts the image in `storage`. Its counts must be wrong for the clusters in `out_of_date`, which is sorted, and
/// for no others.
pub fn check<S: Storage + ?Sized>(
    recount: &mut Recount,
    storage: &S,
    out_of_date: &[Deviation],
    set_aside: &mut SetAside,
) -> OracleResult {
    let reports = recounted(recount, storage)?;
    // A deviation explains a report.
    check_all(reports, |report| explained(report, out_of_date), set_aside)?;
    check_out_of_date(reports, out_of_date, set_aside)?;
    check_past_end(recount, storage, set_aside)
}

/// Recounts the image in `storage`. The clusters in `may_leak`, which come in the order of the file, may be counted
/// once and have no reference.
pub fn check_with_leaks<S: Storage + ?Sized>(
    recount: &mut Recount,
    storage: &S,
    may_leak: &[Range<u64>],
    set_aside: &mut SetAside,
) -> OracleResult {
    let reports = recounted(recount, storage)?;
    let may_be = |report: &RefcountReport| {
        let is_leak = report.finding == RefcountFault::Leak && report.references == 0;
        // The clusters lie in a file of less than 2^63 bytes, so the sum does not saturate.
        let end = report.cluster.get().saturating_add(report.clusters);
        is_leak && report.on_disk == 1 && lies_in(report.cluster.get()..end, may_leak)
    };
    check_all(reports, may_be, set_aside)?;
    check_past_end(recount, storage, set_aside)
}

/// Reports whether all `clusters` lie in `ranges`, which come in the order of the file.
fn lies_in(clusters: Range<u64>, ranges: &[Range<u64>]) -> bool {
    let mut next = clusters.start;
    for range in ranges {
        if range.contains(&next) {
            next = range.end;
        }
    }
    next >= clusters.end
}

/// Returns the clusters of the bitmaps of the image in `storage`, in the order of the file.
pub fn clusters_of_bitmaps<S: Storage + ?Sized>(
    recount: &mut Recount,
    storage: &S,
) -> OracleResult<Vec<Range<u64>>> {
    recounted(recount, storage)?;
    let of_bitmaps =
        |role| matches!(role, Some(Role::BitmapDirectory | Role::BitmapTable | Role::BitmapData));
    let occupied = recount.occupied().into_iter().filter(|clusters| of_bitmaps(clusters.role));
    Ok(occupied.map(|clusters| clusters.first..clusters.end).collect())
}

/// Recounts the image, which must be readable.
fn recounted<'r, S: Storage + ?Sized>(
    recount: &'r mut Recount,
    storage: &S,
) -> OracleResult<&'r [RefcountReport]> {
    let unreadable = ("readable", "an error");
    let recounted = recount.recount(storage);
    recounted.map_err(|error| disagreement(ORACLE, "image", unreadable, error.to_string()))
}

fn check_past_end<S: Storage + ?Sized>(
    recount: &Recount,
    storage: &S,
    set_aside: &mut SetAside,
) -> OracleResult {
    recount.past_end().try_for_each(|(past, Range { start, end })| {
        let length = storage.length_bytes();
        let detail = format!("clusters {start} to {end}, the file has {length} bytes");
        let kinds = ("in the file", "past its end");
        set_aside(disagreement(ORACLE, role(Some(past)), kinds, detail))
    })
}

/// Recounts the image in `storage` after a cut. Clusters may be leaked. The dirty bit is not set.
///
/// A writer that takes or deletes a snapshot cannot change the counts and the flags at once. So an entry may be marked
/// as copied although the count of its cluster is higher than 1, if no other entry names the cluster. Then the count is
/// a leak, and a write in place harms no other reference. The flag may also be missing: then a writer copies a cluster
/// in vain.
pub fn check_after_cut<S: Storage + ?Sized>(
    recount: &mut Recount,
    storage: &S,
    set_aside: &mut SetAside,
) -> OracleResult {
    recounted(recount, storage)?;
    let is_leak = |report: &RefcountReport| match report.finding {
        RefcountFault::Leak => true,
        RefcountFault::Copied => {
            let is_missing = report.references == 0;
            is_missing || report.on_disk > 1 && recount.references(report.cluster) == 1
        }
        RefcountFault::Corruption | RefcountFault::Overlap => false,
    };
    check_all(recount.reports(), is_leak, set_aside)?;
    check_past_end(recount, storage, set_aside)
}

/// Checks that each report is explained. Skips a count if the cluster has an overlap, and a flag if the cluster has an
/// overlap, or a wrong count and the flag that fits its references: they follow from it. Overlaps come first, then
/// counts, then flags.
fn check_all(
    reports: &[RefcountReport],
    is_explained: impl Fn(&RefcountReport) -> bool,
    set_aside: &mut SetAside,
) -> OracleResult {
    let (mut overlaps, mut counts) = (RangeMap::default(), RangeMap::default());
    for report in reports.iter().filter(|report| !is_explained(report)) {
        let cluster = report.cluster.get();
        // The clusters lie in a file of less than 2^63 bytes, so the sum does not saturate.
        let clusters = cluster..cluster.saturating_add(report.clusters);
        let has_overlap = overlaps.at(cluster).0.is_some();
        let follows = match report.finding {
            RefcountFault::Overlap => false,
            RefcountFault::Leak | RefcountFault::Corruption => has_overlap,
            // The value of the flag stands in place of the references.
            RefcountFault::Copied => {
                let fits = |references: &u64| report.references == u64::from(*references == 1);
                has_overlap || counts.at(cluster).0.is_some_and(fits)
            }
        };
        if follows {
            continue;
        }
        set_aside(violation_of(report, reports.len()))?;
        match report.finding {
            RefcountFault::Overlap => overlaps.insert(clusters, ()),
            RefcountFault::Leak | RefcountFault::Corruption => {
                counts.insert(clusters, report.references);
            }
            RefcountFault::Copied => {}
        }
    }
    Ok(())
}

fn violation_of(report: &RefcountReport, all: usize) -> Box<Violation> {
    let kinds = match report.finding {
        RefcountFault::Leak if report.references == 0 => ("free", "counted"),
        RefcountFault::Leak => ("the references", "more"),
        RefcountFault::Corruption => ("the references", "fewer"),
        RefcountFault::Copied if report.references == 1 => ("not copied", "copied"),
        RefcountFault::Copied => ("copied", "not copied"),
        RefcountFault::Overlap => ("a cluster of its own", "an overlap"),
    };
    disagreement(ORACLE, role(report.role), kinds, format!("{report}; {all} in all"))
}

/// Reports whether a violation is a leak of clusters without a reference: no later finding follows from it.
pub fn is_leak(found: &Violation) -> bool {
    found.oracle == ORACLE && found.actual == "counted"
}

/// Reports whether all clusters of a report are out of date in the way that the report says.
fn explained(report: &RefcountReport, out_of_date: &[Deviation]) -> bool {
    let first = out_of_date.partition_point(|one| one.cluster < report.cluster);
    let mut cluster = report.cluster.get();
    // The clusters lie in a file of less than 2^63 bytes, so the sum does not saturate.
    let end = cluster.saturating_add(report.clusters);
    for one in &out_of_date[first..] {
        let as_left = match report.finding {
            RefcountFault::Leak | RefcountFault::Corruption => one.references == report.references,
            RefcountFault::Copied => one.flags > 0,
            RefcountFault::Overlap => false,
        };
        if cluster == end
            || one.cluster.get() != cluster
            || one.on_disk != report.on_disk
            || !as_left
        {
            break;
        }
        cluster += 1;
    }
    cluster == end
}

/// Checks that the recount finds every deviation: the count once, and COPIED as often as flags disagree with the
/// count.
fn check_out_of_date(
    reports: &[RefcountReport],
    out_of_date: &[Deviation],
    set_aside: &mut SetAside,
) -> OracleResult {
    for one in out_of_date {
        let about = |report: &&RefcountReport| {
            // As above.
            let from = report.cluster.get();
            (from..from.saturating_add(report.clusters)).contains(&one.cluster.get())
        };
        let of = |copied: bool| {
            let kind =
                move |report: &&RefcountReport| (report.finding == RefcountFault::Copied) == copied;
            reports.iter().filter(about).filter(kind).count() as u64
        };
        for (what, found, expected) in
            [("out-of-date count", of(false), 1), ("out-of-date flag", of(true), one.flags)]
        {
            if found != expected {
                let kinds = ("as it was left", "otherwise");
                let Deviation { cluster, references, on_disk, .. } = one;
                let left =
                    format!("cluster {cluster}: references {references}, refcount {on_disk}");
                let detail = format!("{left}: {found} reports, expected {expected}");
                set_aside(disagreement(ORACLE, what, kinds, detail))?;
            }
        }
    }
    Ok(())
}

fn role(role: Option<Role>) -> &'static str {
    role.map_or("unreferenced cluster", Role::name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::clusters::HostCluster;
    use crate::disk::offsets::HostOffset;
    use crate::harness::{Harness, Walker};

    #[test]
    fn a_range_may_lie_in_several_others_without_a_gap() {
        let ranges = [2..4, 4..5, 7..9];
        for (clusters, expected) in [
            (2..5, true),
            (3..4, true),
            (7..9, true),
            (1..3, false),
            (4..6, false),
            (4..8, false),
            (8..10, false),
            (9..10, false),
        ] {
            assert_eq!(lies_in(clusters.clone(), &ranges), expected, "{clusters:?}");
        }
        assert!(!lies_in(0..1, &[]));
    }

    #[test]
    fn a_known_report_hides_no_other() {
        let report = |finding, cluster| RefcountReport {
            finding,
            cluster: HostCluster::new(cluster),
            clusters: 1,
            references: 0,
            on_disk: 1,
            role: Some(Role::Data),
        };
        use RefcountFault::{Copied, Corruption, Leak, Overlap};
        let reports =
            [(Overlap, 4), (Leak, 3), (Corruption, 4), (Copied, 3), (Copied, 4), (Copied, 5)];
        let reports = reports.map(|(finding, cluster)| report(finding, cluster));
        let mut found = Vec::new();
        let set_aside = &mut |violation: Box<Violation>| {
            found.push((violation.fingerprint(), is_leak(&violation)));
            Ok(())
        };
        check_all(&reports, |_| false, set_aside).unwrap();
        let expected = [
            ("refcounts: data, a cluster of its own → an overlap", false),
            ("refcounts: data, free → counted", true),
            ("refcounts: data, copied → not copied", false),
        ];
        assert_eq!(found, expected.map(|(name, is_leak)| (name.to_string(), is_leak)));
    }

    #[test]
    fn a_file_that_ends_too_early_is_found() {
        let text = "image version=3 cluster_bits=9 refcount_order=4 features=none size=90<<9+0 \
                    rng_seed=0 blocks=first table=first tolerance=0\nreserve gap=9<<0\n\
                    write at=start+0 clusters=9";
        let program = crate::programs::text::assemble(text).unwrap();
        let mut harness = Harness::new(Walker::default());
        let image = harness.build(&program.encode());
        let mut file = vec![0; image.length_bytes() as usize];
        image.read_at(HostOffset::ZERO, &mut file).unwrap();
        let mut recount = Recount::new();
        assert!(check(&mut recount, file.as_slice(), &[], &mut Err).is_ok());
        // The refcount structures lie in the gap, the data at the end. One cluster may be missing.
        file.truncate(file.len() - 1024);
        let found = check(&mut recount, file.as_slice(), &[], &mut Err).unwrap_err();
        assert_eq!(found.fingerprint(), "refcounts: data, in the file → past its end");
    }
}
