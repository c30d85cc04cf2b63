//! Bugs in the extents of a walk: the oracles partition, maximal, flags and model.

use crate::prelude::*;
use qcowfuzz::formats::qcow2::entry::Layout;

use super::{Case, Facts, Fault, coalesce, continues, cut};

pub const CASES: &[Case] = &[
    // Partition.
    Case::extents("an extent is lost", lose_one, &["partition: start, the last end → a gap"]),
    Case::extents(
        "an extent begins early",
        overlap,
        &["partition: start, the last end → an overlap"],
    ),
    Case::extents(
        "an empty extent",
        empty,
        &[
            "partition: length, at least 1 → 0",
            // Only a resumed walk has room for one more extent.
            "window: resumed, as many as are left → another number",
        ],
    ),
    Case::extents(
        "the last extent is too long",
        |extents, _, _| on_last(extents, |last| last.length_bytes += 512),
        &["partition: end, the window's end → past it"],
    ),
    Case::extents(
        "the last cluster is reported whole",
        |extents, facts, _| {
            let cluster = facts.geometry.cluster_size.bytes();
            on_last(extents, |last| {
                let end = last.start.get() + last.length_bytes;
                last.length_bytes += end.next_multiple_of(cluster) - end;
            });
        },
        &["partition: end, the window's end → past it"],
    ),
    Case::extents(
        "the last extent is too short",
        |extents, _, _| on_last(extents, |last| last.length_bytes -= 1),
        &["partition: end, the window's end → short of it"],
    ),
    Case::extents(
        "the last extent goes on for ever",
        |extents, _, _| on_last(extents, |last| last.length_bytes = u64::MAX),
        &[
            "partition: end, within 64 bits → past them",
            "partition: end, the window's end → past it",
        ],
    ),
    // Maximal.
    Case::extents("an extent is cut in two", cut_one, &["maximal: "]),
    Case::extents("merges end at an L2 table's edge", cut_at_table_edge, &["maximal: "]),
    // Flags.
    Case::extents(
        "compressed data have an offset",
        |extents, _, _| offset_of_compressed(extents),
        &["flags: offset, possible"],
    ),
    Case::extents(
        "data read as zeros",
        |extents, _, _| each(extents, |mapping| mapping.zero = true),
        &["flags: zero and data, possible → impossible"],
    ),
    Case::extents(
        "data are absent",
        |extents, _, _| each(extents, |mapping| mapping.present &= !mapping.data),
        &["flags: present and data, possible → impossible"],
    ),
    Case::extents(
        "data have no offset",
        |extents, _, _| each(extents, |mapping| mapping.offset = None),
        &["flags: offset, possible → impossible", "model: ", "maximal: "],
    ),
    Case::extents(
        "an offset counts sectors and bytes",
        |extents, _, _| crooked(extents),
        &["flags: offset, aligned like the guest's → not"],
    ),
    Case::extents(
        "data lie at the end of 64 bits",
        |extents, _, _| {
            each(extents, |mapping| {
                mapping.offset = mapping.offset.map(|_| HostOffset::new(u64::MAX - 511));
            });
        },
        &["flags: host end, within 64 bits → past them"],
    ),
    // Model.
    Case::extents(
        "everything is a hole",
        |extents, _, _| replace_mappings(extents, |_| Mapping::HOLE),
        &["model: kind, normal → unallocated", "model: kind, "],
    ),
    Case::extents(
        "the offset of zero-allocated clusters is dropped",
        |extents, _, _| {
            replace_mappings(
                extents,
                |it| if it.present && it.zero { without_offset(it) } else { it },
            )
        },
        &["model: kind, zero-allocated → zero-plain"],
    ),
    Case::extents(
        "zero-plain is reported as unallocated",
        |extents, _, _| {
            let plain = |it: &Mapping| it.present && it.zero && it.offset.is_none();
            replace_mappings(extents, |it| if plain(&it) { Mapping::HOLE } else { it });
        },
        &["model: kind, zero-plain → unallocated"],
    ),
    Case::extents(
        "zero-plain has an offset",
        |extents, facts, _| {
            let offset = Some(HostOffset::new(facts.geometry.cluster_size.bytes()));
            let plain = |it: &Mapping| it.present && it.zero && it.offset.is_none();
            replace_mappings(extents, |it| if plain(&it) { Mapping { offset, ..it } } else { it });
        },
        &["model: kind, zero-plain → zero-allocated", "flags: offset, aligned"],
    ),
    Case::extents(
        "unallocated subclusters have no offset",
        |extents, _, _| {
            replace_mappings(extents, |it| if it.present { it } else { without_offset(it) })
        },
        &["model: kind, unallocated subcluster → unallocated"],
    ),
    Case::extents(
        "offsets have 32 bits",
        |extents, _, _| {
            each(extents, |it| {
                it.offset = it.offset.map(|at| HostOffset::new(at.get() as u32 as u64))
            })
        },
        &["model: offset, normal → normal", "model: offset, "],
    ),
    Case::extents(
        "everything is one layer down",
        |extents, _, _| each(extents, |mapping| mapping.depth = 1),
        &["model: depth, "],
    ),
    Case::extents(
        "runs merge wherever they lie in the file",
        |extents, _, _| {
            coalesce(extents, |here, next| {
                without_offset(here.mapping) == without_offset(next.mapping)
            })
        },
        &["model: offset, normal → normal", "model: offset, ", "model: kind, "],
    ),
    Case::extents(
        "runs merge whether they are present or not",
        |extents, _, _| {
            coalesce(extents, |here, next| {
                let present = Mapping { present: here.mapping.present, ..next.mapping };
                here.mapping.continues_as(here.length_bytes, &present)
            })
        },
        &["model: kind, zero-plain → unallocated", "model: kind, unallocated → zero-plain"],
    ),
    Case {
        name: "the size is not cut to sectors",
        fault: Fault { size: Some(|facts| facts.stored_size_bytes), ..Fault::NONE },
        fingerprints: &["model: virtual size, the journal's → larger"],
    },
    Case {
        name: "the size is cut to clusters",
        fault: Fault {
            size: Some(|facts| facts.size_bytes & !facts.geometry.cluster_size.mask()),
            ..Fault::NONE
        },
        fingerprints: &["model: virtual size, the journal's → smaller"],
    },
    Case::extents(
        "all offsets are a cluster off",
        |extents, facts, _| {
            let cluster = facts.geometry.cluster_size.bytes();
            each(extents, |it| it.offset = it.offset.map(|at| at + cluster));
        },
        &["model: offset, normal → normal", "model: offset, "],
    ),
];

fn on_last(extents: &mut [Extent], change: impl Fn(&mut Extent)) {
    extents.last_mut().into_iter().for_each(change);
}

fn each(extents: &mut [Extent], change: impl Fn(&mut Mapping)) {
    extents.iter_mut().for_each(|extent| change(&mut extent.mapping));
}

/// Replaces every mapping by another, and then merges extents as the walker does.
fn replace_mappings(extents: &mut Vec<Extent>, replacement: impl Fn(Mapping) -> Mapping) {
    each(extents, |mapping| *mapping = replacement(*mapping));
    coalesce(extents, continues);
}

fn without_offset(mapping: Mapping) -> Mapping {
    Mapping { offset: None, ..mapping }
}

fn lose_one(extents: &mut Vec<Extent>, _: &Facts, _: Window) {
    if extents.len() >= 3 {
        extents.remove(extents.len() / 2);
    }
}

fn overlap(extents: &mut Vec<Extent>, _: &Facts, _: Window) {
    if let [_, next, ..] = extents.as_mut_slice() {
        next.start = GuestOffset::new(next.start.get() - 1);
        next.length_bytes += 1;
    }
}

/// Adds an empty extent, unless the walk would then have more extents than the disk has cells.
fn empty(extents: &mut Vec<Extent>, facts: &Facts, _: Window) {
    let cells = facts.size_bytes / facts.geometry.cell_bytes();
    if let Some(first) = extents.first().copied()
        && (extents.len() as u64) < cells
    {
        extents.insert(0, Extent { length_bytes: 0, ..first });
    }
}

fn cut_one(extents: &mut Vec<Extent>, facts: &Facts, _: Window) {
    let cell = facts.geometry.cell_bytes();
    if let Some(index) = extents.iter().position(|extent| extent.length_bytes > cell) {
        cut(extents, index, cell);
    }
}

fn cut_at_table_edge(extents: &mut Vec<Extent>, facts: &Facts, _: Window) {
    let span = facts.geometry.l2_span_bytes();
    for index in (0..extents.len()).rev() {
        let start = extents[index].start.get();
        let until_edge = span - start % span;
        if until_edge < extents[index].length_bytes {
            cut(extents, index, until_edge);
        }
    }
}

fn offset_of_compressed(extents: &mut [Extent]) {
    let offset = Some(HostOffset::new(0x5_0000));
    each(extents, |it| it.offset = if it.compressed { offset } else { it.offset });
}

fn crooked(extents: &mut [Extent]) {
    each(extents, |it| it.offset = it.offset.map(|at| at + 1));
}
