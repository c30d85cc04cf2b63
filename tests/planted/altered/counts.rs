//! Bugs in refcounts and COPIED flags.

use qcowfuzz::formats::qcow2::constants::COPIED;
use qcowfuzz::formats::qcow2::entry::ClusterKind;
use test_support::prelude::*;

use super::{Altered, Case, Mapped, case};

pub const CASES: &[Case] = &[
    case(
        "COPIED is lost from an L2 entry",
        |it| flip_copied(it, true),
        &["refcounts: data, copied → not copied"],
        &[],
    ),
    case(
        "COPIED is set though the cluster is shared",
        |it| flip_copied(it, false),
        &["refcounts: data, not copied → copied"],
        &[],
    ),
    case(
        "COPIED of an L1 entry is flipped",
        |it| {
            let (at, entry) = *it.l1.first()?;
            it.write_word(at, entry.0 ^ COPIED)
        },
        &["refcounts: L2 table, copied → not copied", "refcounts: L2 table, not copied → copied"],
        &[],
    ),
    case(
        "data are counted once too often",
        |it| {
            let host = host_of(&it.find(|kind| host(kind).is_some())?)?;
            let count = it.count(host)?;
            it.set_count(host, count + 1).then_some(())
        },
        &["refcounts: data, the references → more"],
        // The count may have become one.
        &["refcounts: data, "],
    ),
    case(
        "data are counted once too little",
        |it| {
            let host = host_of(&it.find(|kind| host(kind).is_some())?)?;
            uncount(it, host)
        },
        &["refcounts: data, the references → fewer"],
        &[],
    ),
    case(
        "compressed data are counted once too little",
        |it| match it.find(|kind| matches!(kind, ClusterKind::Compressed(_)))?.kind {
            ClusterKind::Compressed(run) => uncount(it, run.offset),
            _ => None,
        },
        &["refcounts: compressed data, the references → fewer"],
        &[],
    ),
    case(
        "the header is not counted",
        |it| uncount(it, HostOffset::ZERO),
        &["refcounts: header, the references → fewer"],
        &[],
    ),
    case(
        "an L2 table is not counted",
        |it| uncount(it, it.l1.first()?.1.table()?),
        &["refcounts: L2 table, the references → fewer"],
        &[],
    ),
    case(
        "the L1 table is not counted",
        |it| if it.header.l1_entries > 0 { uncount(it, it.header.l1_offset) } else { None },
        &["refcounts: L1 table, the references → fewer"],
        &[],
    ),
    case(
        "the refcount table does not count itself",
        |it| uncount(it, it.header.refcount_table_offset),
        &["refcounts: refcount table, the references → fewer"],
        &[],
    ),
    case(
        "a refcount block does not count itself",
        |it| uncount(it, it.block_hosts()[0]),
        &["refcounts: refcount block, the references → fewer"],
        &[],
    ),
    case(
        "the snapshot table is not counted",
        |it| if it.header.snapshots > 0 { uncount(it, it.header.snapshots_offset) } else { None },
        &["refcounts: snapshot table, the references → fewer"],
        &[],
    ),
    case(
        "a refcount block is lost",
        |it| {
            let at = *it.block_entries().last()?;
            it.write_word(at, 0)
        },
        &["refcounts: "],
        &[],
    ),
    case(
        "a free cluster is counted",
        |it| {
            let cluster = it.geometry().cluster_size.bytes();
            let free = (0..4096).map(|n| HostOffset::new(n * cluster));
            let free = free.into_iter().find(|host| it.count(*host) == Some(0))?;
            it.set_count(free, 1).then_some(())
        },
        &["refcounts: unreferenced cluster, free → counted"],
        &[],
    ),
    case(
        "a snapshot's L1 table lies a cluster further on",
        |it| {
            let l1 = it.first_snapshot()?;
            let moved = l1.l1_offset.get() + it.geometry().cluster_size.bytes();
            let at = it.header.snapshots_offset.get();
            it.write_word(at, moved);
            (l1.l1_entries > 0).then_some(())
        },
        &["refcounts: "],
        &[],
    ),
];

fn host(kind: &ClusterKind) -> Option<HostOffset> {
    match kind {
        ClusterKind::Normal(host)
        | ClusterKind::ZeroAllocated(host)
        | ClusterKind::Subclusters(host) => Some(*host),
        _ => None,
    }
}

fn host_of(entry: &Mapped) -> Option<HostOffset> {
    host(&entry.kind)
}

fn flip_copied(it: &mut Altered, from: bool) -> Option<()> {
    let with_host = |entry: &&Mapped| host(&entry.kind).is_some() && entry.copied() == from;
    let entry = *it.l2.iter().find(with_host)?;
    it.write_word(entry.at, entry.word ^ COPIED)
}

pub fn uncount(it: &mut Altered, host: HostOffset) -> Option<()> {
    let count = it.count(host)?;
    it.set_count(host, count.checked_sub(1)?).then_some(())
}
