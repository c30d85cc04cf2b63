//! Bugs in images whose counts are meant to be out of date: in these counts and in others.

use qcowfuzz::formats::qcow2::constants::COPIED;
use qcowfuzz::formats::qcow2::entry::ClusterKind;
use qcowfuzz::internal::images::files::Deviation;
use test_support::prelude::*;

use super::Altered;

/// A bug in an image with intended deviations, and the fingerprint that it must have in every image.
pub struct Case {
    pub name: &'static str,
    pub plant: fn(&mut Altered, &[Deviation]) -> Option<()>,
    pub found: &'static str,
}

pub const CASES: &[Case] = &[
    Case {
        name: "a count that is out of date is put right",
        plant: |it, out_of_date| {
            let one = out_of_date.first()?;
            it.set_count(place(it, one), one.references).then_some(())
        },
        found: "refcounts: out-of-date count, as it was left → otherwise",
    },
    Case {
        name: "a count is out of date by more than it was left",
        plant: |it, out_of_date| {
            let one = out_of_date.iter().find(|one| one.on_disk > one.references)?;
            it.set_count(place(it, one), one.on_disk + 1).then_some(())
        },
        found: "refcounts: ",
    },
    Case {
        name: "one more count is out of date",
        plant: |it, out_of_date| {
            let (host, _) = data(it, |host| !is_among(it, out_of_date, host))?;
            let count = it.count(host)?;
            it.set_count(host, count - 1).then_some(())
        },
        found: "refcounts: data, the references → fewer",
    },
    Case {
        name: "COPIED follows a count that is out of date",
        plant: |it, out_of_date| {
            let flagged: Vec<_> = out_of_date.iter().copied().filter(|it| it.flags > 0).collect();
            let (_, entry) = data(it, |host| is_among(it, &flagged, host))?;
            it.write_word(entry.0, entry.1 ^ COPIED)
        },
        found: "refcounts: out-of-date flag, as it was left → otherwise",
    },
    Case {
        name: "COPIED does not follow a count that is right",
        plant: |it, out_of_date| {
            let (_, entry) = data(it, |host| !is_among(it, out_of_date, host))?;
            it.write_word(entry.0, entry.1 ^ COPIED)
        },
        found: "refcounts: data, ",
    },
];

fn place(it: &Altered, one: &Deviation) -> HostOffset {
    it.geometry().cluster_size.host_offset(one.cluster)
}

fn is_among(it: &Altered, out_of_date: &[Deviation], host: HostOffset) -> bool {
    let cluster = it.geometry().cluster_size.host_cluster(host);
    out_of_date.iter().any(|one| one.cluster == cluster)
}

/// Returns the first cluster of data that is `wanted`: its host offset, and the offset and the word of its entry.
fn data(it: &Altered, wanted: impl Fn(HostOffset) -> bool) -> Option<(HostOffset, (u64, u64))> {
    it.l2.iter().find_map(|entry| match entry.kind {
        ClusterKind::Normal(host)
        | ClusterKind::ZeroAllocated(host)
        | ClusterKind::Subclusters(host)
            if wanted(host) =>
        {
            Some((host, (entry.at, entry.word)))
        }
        _ => None,
    })
}
