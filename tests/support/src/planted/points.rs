//! Bugs in look-ups and in reading data.

use crate::prelude::*;
use qcowfuzz::formats::error::MapError;
use qcowfuzz::formats::qcow2::entry::Layout;

use super::{Case, Facts, Fault, LookUp, Looked, OnLookup, OnRead, Walked};

const fn lookup(
    name: &'static str,
    change: OnLookup,
    fingerprints: &'static [&'static str],
) -> Case {
    Case { name, fault: Fault { lookup: Some(change), ..Fault::NONE }, fingerprints }
}

const fn read(name: &'static str, change: OnRead, fingerprints: &'static [&'static str]) -> Case {
    Case { name, fault: Fault { read: Some(change), ..Fault::NONE }, fingerprints }
}

/// The bytes at the edges of a cluster that the reader of its inside leaves alone.
const EDGE_BYTES: u64 = 16;

pub const CASES: &[Case] = &[
    lookup("the L2 index is one off", next_cluster, &["lookup: kind, ", "lookup: offset, "]),
    lookup(
        "the L2 index is one off in a table's last entry",
        |disk, facts, guest| {
            let (span, cluster) =
                (facts.geometry.l2_span_bytes(), facts.geometry.cluster_size.bytes());
            match guest.get() % span >= span - cluster {
                true => disk.lookup(GuestOffset::new(guest.get() - cluster)),
                false => disk.lookup(guest),
            }
        },
        &["lookup: kind, ", "lookup: offset, "],
    ),
    lookup(
        "the offset is that of the cluster",
        |disk, facts, guest| {
            let inside = guest.get() & facts.geometry.cluster_size.mask();
            let mapping = disk.lookup(guest)?;
            let offset = mapping.offset.map(|at| HostOffset::new(at.get() - inside));
            Ok(Mapping { offset, ..mapping })
        },
        &["lookup: offset, normal → normal", "lookup: offset, "],
    ),
    lookup(
        "a byte past the end is a hole",
        |disk, facts, guest| match guest.get() < facts.size_bytes {
            true => disk.lookup(guest),
            false => Ok(Mapping::HOLE),
        },
        &["lookup: past the end, refused → unallocated"],
    ),
    lookup(
        "zeros are refused",
        |disk, _, guest| {
            let mapping = disk.lookup(guest)?;
            let refused = EngineError::from(MapError::Unsupported("zeros"));
            if mapping.present && mapping.zero { Err(refused) } else { Ok(mapping) }
        },
        &["lookup: byte, an answer → an error"],
    ),
    lookup(
        "subclusters are counted from the wrong end",
        |disk, facts, guest| {
            let cluster = facts.geometry.cluster_size.bytes();
            let first = guest.get() & !(cluster - 1);
            let cell = facts.geometry.cell_bytes();
            let inside = guest.get() - first;
            let mirrored = cluster - cell - inside / cell * cell + inside % cell;
            let other = GuestOffset::new(first + mirrored);
            match guest.max(other).get() < facts.size_bytes {
                true => disk.lookup(other),
                false => disk.lookup(guest),
            }
        },
        &["lookup: offset, ", "lookup: kind, "],
    ),
    // Data.
    read(
        "data come from the next cell",
        |disk, facts, guest, into| {
            let other = guest + facts.geometry.cell_bytes();
            match other.get() + into.len() as u64 <= facts.size_bytes {
                true => disk.read(other, into),
                false => disk.read(guest, into),
            }
        },
        &["data: normal, what was written → another stamp", "data: "],
    ),
    read(
        "data come from the cluster's beginning",
        |disk, facts, guest, into| {
            let first = guest.get() & !facts.geometry.cluster_size.mask();
            match guest.get() + into.len() as u64 <= facts.size_bytes {
                true => disk.read(GuestOffset::new(first), into),
                false => disk.read(guest, into),
            }
        },
        &["data: normal, what was written → another stamp", "data: "],
    ),
    read(
        "compressed clusters read as zeros",
        |disk, _, guest, into| {
            disk.read(guest, into)?;
            if disk.lookup(guest)?.compressed {
                into.fill(0);
            }
            Ok(())
        },
        &["data: compressed, what was written → zeros"],
    ),
    read(
        "compressed clusters are refused",
        |disk, _, guest, into| match disk.lookup(guest)?.compressed {
            true => Err(EngineError::from(MapError::Unsupported("compressed clusters"))),
            false => disk.read(guest, into),
        },
        &[
            "data: compressed, an answer → an error",
            "data: range, an answer → an error",
            "lookup: ",
        ],
    ),
    read(
        "reads past the end return other bytes",
        |disk, facts, guest, into| match guest.get() + into.len() as u64 > facts.size_bytes {
            true => {
                into.fill(0x55);
                Ok(())
            }
            false => disk.read(guest, into),
        },
        &["data: past the end, an error or zeros → other bytes"],
    ),
    read(
        "holes leave the buffer as it was",
        |disk, _, guest, into| match disk.lookup(guest)?.data {
            true => disk.read(guest, into),
            false => Ok(()),
        },
        &["data: unallocated, what was written → other bytes", "data: ", "lookup: "],
    ),
    read(
        "the last byte is lost",
        |disk, _, guest, into| {
            disk.read(guest, into)?;
            into.last_mut().into_iter().for_each(|byte| *byte = 0);
            Ok(())
        },
        &["data: normal, what was written → other bytes", "data: "],
    ),
    read(
        "the inside of a cluster reads as zeros",
        zeros_inside,
        &["data: normal, what was written → other bytes", "data: normal, "],
    ),
    read(
        "the edges of clusters with subclusters read as zeros",
        zeros_at_edges,
        &["data: normal, what was written → zeros", "data: normal, "],
    ),
    read(
        "the bytes of a cluster behind its first 64 KiB read as zeros",
        zeros_in_depth,
        &["data: normal, what was written → zeros", "data: normal, "],
    ),
    read(
        "the inside of a hole of a large disk reads as other bytes",
        |disk, facts, guest, into| fill_inside(disk, facts, guest, into, |it| !it.data, 1),
        &["data: unallocated, what was written → other bytes", "data: "],
    ),
    read(
        "the inside of a compressed cluster of a large disk reads as zeros",
        |disk, facts, guest, into| fill_inside(disk, facts, guest, into, |it| it.compressed, 0),
        &["data: compressed, what was written → other bytes", "data: "],
    ),
    read(
        "a cluster between two others of an extent is read from the first one",
        inner_cluster,
        &["data: normal, what was written → other bytes", "data: normal, "],
    ),
    read(
        "what a zero-allocated cluster held before is read",
        stale,
        &["data: zero-allocated, what was written → another stamp", "data: "],
    ),
];

fn next_cluster(disk: &mut dyn OpenDisk, facts: &Facts, guest: GuestOffset) -> Looked {
    let next = guest + facts.geometry.cluster_size.bytes();
    if next.get() < facts.size_bytes { disk.lookup(next) } else { disk.lookup(guest) }
}

/// Reads zeros in place of the bytes at the guest offsets that `is_dropped` names, except in compressed clusters.
fn zeros_where(
    disk: &mut dyn OpenDisk,
    guest: GuestOffset,
    into: &mut [u8],
    is_dropped: impl Fn(u64) -> bool,
) -> Walked {
    disk.read(guest, into)?;
    for (at, byte) in (guest.get()..).zip(into) {
        if is_dropped(at) && !disk.lookup(GuestOffset::new(at))?.compressed {
            *byte = 0;
        }
    }
    Ok(())
}

/// Reads zeros inside of clusters of data.
pub fn zeros_inside(
    disk: &mut dyn OpenDisk,
    facts: &Facts,
    guest: GuestOffset,
    into: &mut [u8],
) -> Walked {
    let mask = facts.geometry.cluster_size.mask();
    zeros_where(disk, guest, into, |at| {
        [at, at + EDGE_BYTES].iter().all(|at| at & mask >= EDGE_BYTES)
    })
}

/// Reads zeros at the edges of clusters of data that have subclusters, where inner stamps leave room for zeros.
fn zeros_at_edges(
    disk: &mut dyn OpenDisk,
    facts: &Facts,
    guest: GuestOffset,
    into: &mut [u8],
) -> Walked {
    let size = facts.geometry.cluster_size;
    let has_subclusters = facts.geometry.cell_bytes() < size.bytes();
    let inside = EDGE_BYTES..size.bytes() - EDGE_BYTES;
    zeros_where(disk, guest, into, |at| has_subclusters && !inside.contains(&(at & size.mask())))
}

/// Reads zeros behind the first 64 KiB of clusters of data, except in their last sector.
fn zeros_in_depth(
    disk: &mut dyn OpenDisk,
    facts: &Facts,
    guest: GuestOffset,
    into: &mut [u8],
) -> Walked {
    let cluster_size = facts.geometry.cluster_size;
    let dropped = 64 << 10..cluster_size.bytes() - 512;
    zeros_where(disk, guest, into, |at| dropped.contains(&(at & cluster_size.mask())))
}

/// Reads only this byte where the mapping is so, if the disk is too large to be compared whole, and the read is short
/// and lies away from the edges of clusters.
fn fill_inside(
    disk: &mut dyn OpenDisk,
    facts: &Facts,
    guest: GuestOffset,
    into: &mut [u8],
    is_so: fn(&Mapping) -> bool,
    byte: u8,
) -> Walked {
    disk.read(guest, into)?;
    let inside = guest.get() & facts.geometry.cluster_size.mask();
    let end = inside + into.len() as u64;
    let is_far = inside > EDGE_BYTES && end + EDGE_BYTES < facts.geometry.cluster_size.bytes();
    let is_chosen = is_far && facts.size_bytes > 1 << 20 && into.len() <= 256;
    if is_chosen && is_so(&disk.lookup(guest)?) {
        into.fill(byte);
    }
    Ok(())
}

/// Reads from the cluster before if an extent goes on from there to the cluster behind.
fn inner_cluster(
    disk: &mut dyn OpenDisk,
    facts: &Facts,
    guest: GuestOffset,
    into: &mut [u8],
) -> Walked {
    let size = facts.geometry.cluster_size;
    let first = guest.get() & !size.mask();
    let is_inside = guest.get() + into.len() as u64 <= first + size.bytes();
    let has_neighbours = first >= size.bytes() && first + 2 * size.bytes() <= facts.size_bytes;
    if !is_inside || !has_neighbours {
        return disk.read(guest, into);
    }
    let before = GuestOffset::new(first - size.bytes());
    let mapping = disk.lookup(before)?;
    let is_extent = [1, 2].into_iter().all(|clusters| {
        let at = before + clusters * size.bytes();
        mapping.offset.is_some()
            && disk.lookup(at).ok() == mapping.advanced(clusters * size.bytes())
    });
    match is_extent && mapping.data {
        true => disk.read(GuestOffset::new(guest.get() - size.bytes()), into),
        false => disk.read(guest, into),
    }
}

/// Reads at the offset of a mapping, even if its flags say that no data are there.
fn stale(disk: &mut dyn OpenDisk, facts: &Facts, guest: GuestOffset, into: &mut [u8]) -> Walked {
    disk.read(guest, into)?;
    let mapping = disk.lookup(guest)?;
    if let Some(offset) = mapping.offset.filter(|_| !mapping.data) {
        facts.storage.read_at(offset, into)?;
    }
    Ok(())
}
