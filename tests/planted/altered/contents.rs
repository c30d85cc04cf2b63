//! Bugs in the mapping by the tables, and in the data. Most of them leave every refcount correct.

use qcowfuzz::formats::qcow2::entry::{ClusterKind, Layout};
use qcowfuzz::formats::qcow2::geometry::Compression;

use super::{Altered, Case, Mapped, case};

pub const CASES: &[Case] = &[
    case(
        "an entry's host offset is a cluster off",
        |it| {
            let entry = it.normal()?;
            it.write_word(entry.at, entry.word + it.geometry().cluster_size.bytes())
        },
        &["model: offset, normal → normal", "refcounts: ", "data: normal, "],
        &[],
    ),
    case(
        "two entries are exchanged",
        |it| {
            let mut all = it.l2.iter().copied().filter(|it| it.copied());
            let normal = |it: &Mapped| matches!(it.kind, ClusterKind::Normal(_));
            let (one, other) = (all.find(normal)?, all.find(normal)?);
            it.write_word(one.at, other.word);
            it.write_word(other.at, one.word)
        },
        // Every refcount stays correct.
        &["model: offset, normal → normal", "data: normal, what was written → another stamp"],
        &[],
    ),
    case(
        "data have the zero flag",
        |it| {
            let entry = it.normal()?;
            it.write_word(entry.at, entry.word | 1)
        },
        &["model: kind, normal → zero-allocated", "data: normal, what was written → zeros"],
        // In version 2 the flag is an error, and the entry references nothing.
        &["walk: ", "data: normal, an answer → an error", "refcounts: "],
    ),
    case(
        "zero-allocated lost its zero flag",
        |it| {
            let entry = it.find(|kind| matches!(kind, ClusterKind::ZeroAllocated(_)))?;
            it.write_word(entry.at, entry.word & !1)
        },
        &[
            "model: kind, zero-allocated → normal",
            "data: zero-allocated, what was written → another stamp",
        ],
        &[],
    ),
    case(
        "an entry is lost",
        |it| {
            let entry = *it.l2.first()?;
            it.write(entry.at, &vec![0; it.geometry().l2_entry_bytes() as usize]);
            Some(())
        },
        &["model: kind, normal → unallocated", "refcounts: unreferenced cluster, free → counted"],
        &["model: ", "refcounts: ", "data: "],
    ),
    case(
        "the halves of a bitmap are exchanged",
        |it| alter_bitmap(it, |bitmap| bitmap.rotate_left(32)),
        &["model: kind, "],
        &["data: ", "walk: ", "refcounts: "],
    ),
    case(
        "a bitmap begins at the wrong end",
        |it| {
            let half = |half: u64| u64::from((half as u32).reverse_bits());
            alter_bitmap(it, |bitmap| half(bitmap >> 32) << 32 | half(bitmap))
        },
        &["model: kind, ", "data: "],
        &["model: "],
    ),
    case(
        "a table is lost",
        |it| {
            let (at, _) = *it.l1.first()?;
            it.write_word(at, 0)
        },
        &["model: ", "data: ", "refcounts: unreferenced cluster, free → counted"],
        // The table may be a snapshot's, or an empty one.
        &["refcounts: "],
    ),
    case(
        "two tables are exchanged",
        |it| {
            let [(one, first), (other, second)] = *it.l1.first_chunk::<2>()?;
            it.write_word(one, second.0);
            it.write_word(other, first.0)
        },
        &["model: ", "data: "],
        &["refcounts: "],
    ),
    case(
        "the disk is a sector longer",
        |it| it.write_word(24, it.header.size_bytes + 512),
        &["model: virtual size, the journal's → larger"],
        &["open: ", "model: ", "refcounts: image, ", "data: "],
    ),
    case(
        "a bit of the data is flipped",
        |it| match it.normal()?.kind {
            ClusterKind::Normal(host) => {
                let byte = it.byte(host.get() + 7);
                it.write(host.get() + 7, &[byte ^ 1])
            }
            _ => None,
        },
        &["data: normal, what was written → other bytes"],
        &[],
    ),
    // Compressed clusters: the extents do not describe their data.
    case(
        "a bit of compressed data is flipped",
        |it| match it.find(|kind| matches!(kind, ClusterKind::Compressed(_)))?.kind {
            ClusterKind::Compressed(run) if it.geometry().compression == Compression::Deflate => {
                let at = run.offset.get() + 5;
                let byte = it.byte(at);
                it.write(at, &[byte ^ 1])
            }
            _ => None,
        },
        &["data: compressed, what was written → other bytes"],
        &[],
    ),
    case(
        "a compressed cluster's offset is one more",
        |it| alter_compressed(it, |word, _| Some(word + 1)),
        &["data: compressed, "],
        &["refcounts: compressed data, "],
    ),
    Case {
        name: "a compressed cluster is a sector shorter",
        plant: |it| {
            alter_compressed(it, |word, shift| {
                (word << 2 >> 2 >> shift > 0).then(|| word - (1 << shift))
            })
        },
        must: &["data: range, an answer → an error", "refcounts: "],
        may: &["data: compressed, an answer → an error"],
        // The last sector may hold the end-of-block code alone.
        harmless: true,
    },
    Case {
        name: "a compressed cluster is a sector longer",
        plant: |it| {
            let most = (1 << (it.geometry().cluster_size.bits() - 8)) - 1;
            alter_compressed(it, move |word, shift| {
                (word << 2 >> 2 >> shift < most).then(|| word + (1 << shift))
            })
        },
        must: &["refcounts: compressed data, the references → fewer"],
        // The longer payload may reach into any cluster behind it.
        may: &["refcounts: "],
        // The reader ignores bytes behind the payload. A change is visible only if the payload reaches the next
        // cluster.
        harmless: true,
    },
    case(
        "a compressed cluster lost its flag",
        |it| {
            let entry = it.find(|kind| matches!(kind, ClusterKind::Compressed(_)))?;
            it.write_word(entry.at, entry.word & !(1 << 62))
        },
        &["walk: ", "refcounts: ", "data: compressed, "],
        &["model: kind, "],
    ),
];

fn alter_bitmap(it: &mut Altered, alter: impl Fn(u64) -> u64) -> Option<()> {
    let says = |entry: &&Mapped| {
        let compressed = matches!(entry.kind, ClusterKind::Compressed(_));
        !compressed && alter(entry.bitmap.0) != entry.bitmap.0
    };
    let entry = *it.l2.iter().find(says)?;
    it.write_word(entry.at + 8, alter(entry.bitmap.0))
}

/// Alters the first compressed entry. `alter` gets the entry and the first bit of its sector count.
fn alter_compressed(it: &mut Altered, alter: impl Fn(u64, u32) -> Option<u64>) -> Option<()> {
    let entry = it.find(|kind| matches!(kind, ClusterKind::Compressed(_)))?;
    let shift = 70 - it.geometry().cluster_size.bits();
    it.write_word(entry.at, alter(entry.word, shift)?)
}
