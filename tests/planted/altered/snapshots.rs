//! Bugs in the contents of a snapshot.

use qcowfuzz::formats::qcow2::constants::SNAPSHOT_FIXED_BYTES;
use qcowfuzz::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry, Layout};

use super::{Altered, Case, case, words};

pub const CASES: &[Case] = &[
    case(
        "the size of a snapshot's disk is altered",
        |it| {
            it.first_snapshot()?;
            let at = it.header.snapshots_offset.get() + SNAPSHOT_FIXED_BYTES as u64 + 8;
            let size = (0..8).fold(0, |size, byte| size << 8 | u64::from(it.byte(at + byte)));
            it.write_word(at, size.checked_sub(512)?)
        },
        &["snapshots: virtual size, the journal's → smaller"],
        &[],
    ),
    case(
        "an L1 entry of a snapshot is lost",
        |it| {
            let at = snapshot_l1(it)?.first()?.0;
            it.write_word(at, 0)
        },
        &["snapshots: kind, normal → unallocated"],
        &["snapshots: "],
    ),
    Case {
        name: "data are written though a snapshot has them",
        plant: |it| {
            let active: Vec<u64> = it.l2.iter().filter_map(|entry| host(it, entry.word)).collect();
            let own = snapshot_entries(it).into_iter().find(|host| !active.contains(host))?;
            let byte = it.byte(own);
            it.write(own, &[byte ^ 0x10])
        },
        must: &["snapshots: normal, what was written → other bytes"],
        may: &[],
        // The oracle reads a piece only at its edges.
        harmless: true,
    },
];

/// Returns the offsets and the words of the first snapshot's L1 entries that are not empty.
fn snapshot_l1(it: &Altered) -> Option<Vec<(u64, u64)>> {
    let snapshot = it.first_snapshot()?;
    let length = u64::from(snapshot.l1_entries) * 8;
    let entries = words(&it.original, snapshot.l1_offset, length, 8);
    // The loss of a table that maps nothing has no effect.
    let maps = |(at, word, _): (u64, u64, u64)| {
        let table = L1Entry(word).table()?;
        let geometry = it.geometry();
        let entries =
            words(&it.original, table, geometry.cluster_size.bytes(), geometry.l2_entry_bytes());
        let says = |kind| !matches!(kind, ClusterKind::UnallocatedSubclusters);
        entries
            .iter()
            .any(|(_, word, _)| says(L2Entry(*word).kind(&geometry).unwrap()))
            .then_some((at, word))
    };
    Some(entries.into_iter().filter_map(maps).collect())
}

/// Returns the host clusters of data in the first snapshot of an image without extended L2. There, a cluster of data
/// contains nothing else.
fn snapshot_entries(it: &Altered) -> Vec<u64> {
    let geometry = it.geometry();
    if geometry.extended_l2 {
        return Vec::new();
    }
    let tables = snapshot_l1(it).unwrap_or_default();
    let entries = tables.into_iter().flat_map(|(_, word)| {
        let table = L1Entry(word).table().unwrap();
        words(&it.original, table, geometry.cluster_size.bytes(), 8)
    });
    entries.filter_map(|(_, word, _)| host(it, word)).collect()
}

fn host(it: &Altered, word: u64) -> Option<u64> {
    match L2Entry(word).kind(&it.geometry()).unwrap() {
        ClusterKind::Normal(host) => Some(host.get()),
        _ => None,
    }
}
