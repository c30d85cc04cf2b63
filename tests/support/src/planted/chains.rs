//! Bugs that only a backing chain or a data file shows.

use crate::prelude::*;
use qcowfuzz::internal::programs::operand::{DataIn, Size};

use super::{Case, Fault, LookUp, coalesce, continues};

pub const CASES: &[Case] = &[
    Case::extents(
        "every depth is 0",
        |extents, _, _| each(extents, |mapping| mapping.depth = 0),
        &["model: depth, "],
    ),
    Case::extents(
        "holes are the image's own",
        |extents, _, _| each(extents, |mapping| mapping.depth *= u32::from(mapping.present)),
        &["model: depth, unallocated → unallocated", "model: depth, unallocated subcluster"],
    ),
    Case::extents(
        "holes are one layer too deep",
        |extents, _, _| each(extents, |mapping| mapping.depth += u32::from(!mapping.present)),
        &["model: depth, unallocated → unallocated", "model: depth, unallocated subcluster"],
    ),
    Case::extents(
        "what a backing file has is a hole",
        |extents, _, _| {
            each(extents, |mapping| {
                if mapping.depth > 0 {
                    *mapping = Mapping { depth: mapping.depth, ..Mapping::HOLE };
                }
            });
        },
        &["model: kind, normal → unallocated", "model: kind, "],
    ),
    Case::extents(
        "holes of raw files are data",
        |extents, _, _| {
            each(extents, |mapping| {
                let is_hole = mapping.depth > 0 && mapping.kind() == "zero-allocated";
                (mapping.zero, mapping.data) = (mapping.zero && !is_hole, mapping.data || is_hole);
            });
        },
        &["model: kind, zero-allocated → normal"],
    ),
    Case::extents(
        "merges go across layers",
        |extents, _, _| {
            coalesce(extents, |here, next| {
                let mapping = Mapping { depth: here.mapping.depth, ..next.mapping };
                here.mapping.continues_as(here.length_bytes, &mapping)
            });
        },
        &["model: depth, "],
    ),
    Case::extents(
        "offset 0 is no offset",
        |extents, facts, _| {
            let first = Some(HostOffset::ZERO);
            if facts.geometry.data_file
                && extents.first().is_some_and(|it| it.mapping.offset == first)
            {
                extents[0].mapping = Mapping::HOLE;
            }
        },
        &["model: kind, normal → unallocated", "model: kind, ", "maximal: "],
    ),
    Case {
        name: "reads leave backing files alone",
        fault: Fault {
            read: Some(|disk, _, guest, into| {
                disk.read(guest, into)?;
                if !into.is_empty() && disk.lookup(guest)?.depth > 0 {
                    into.fill(0);
                }
                Ok(())
            }),
            ..Fault::NONE
        },
        fingerprints: &["data: normal, what was written → zeros", "data: "],
    },
    Case {
        name: "compressed clusters of lower layers are read from their start only",
        fault: Fault {
            read: Some(|disk, _, guest, into| {
                disk.read(guest, into)?;
                let mapping = disk.lookup(guest)?;
                // This is not the start of a cluster, for any cluster size of that layer.
                if mapping.compressed && mapping.depth > 0 && guest.get() % 512 != 0 {
                    into.fill(0);
                }
                Ok(())
            }),
            ..Fault::NONE
        },
        fingerprints: &["data: compressed, what was written → other bytes", "data: "],
    },
    Case {
        name: "what a read goes on to in another layer is lost",
        fault: Fault {
            read: Some(|disk, _, guest, into| {
                disk.read(guest, into)?;
                for at in 1..into.len() {
                    let there = guest + at as u64;
                    if disk.lookup(there)?.depth != disk.lookup(guest)?.depth {
                        into[at..].fill(0);
                        break;
                    }
                }
                Ok(())
            }),
            ..Fault::NONE
        },
        fingerprints: &["data: two layers, what was written → other bytes", "data: "],
    },
    Case {
        name: "look-ups ask one layer only",
        fault: Fault {
            lookup: Some(|disk, _, guest| {
                let mapping = disk.lookup(guest)?;
                Ok(if mapping.depth > 0 { Mapping::HOLE } else { mapping })
            }),
            ..Fault::NONE
        },
        fingerprints: &["lookup: kind, normal → unallocated", "lookup: "],
    },
];

fn each(extents: &mut Vec<Extent>, change: impl Fn(&mut Mapping)) {
    extents.iter_mut().for_each(|extent| change(&mut extent.mapping));
    // An engine with the bug would merge the extents.
    coalesce(extents, continues);
}

/// Returns programs with overlays of all geometries, including overlays on raw files and with data files.
pub fn inputs() -> Vec<Vec<u8>> {
    let random = (0..200).map(program);
    random.chain((9..=21).map(compressed_below)).map(|program| program.encode()).collect()
}

/// Returns a program whose reads begin inside compressed clusters one layer down, which is rare in random programs.
fn compressed_below(cluster_bits: u32) -> Program {
    let text = format!(
        "image version=3 cluster_bits={cluster_bits} refcount_order=4 features=none size=4<<20+0 rng_seed=0 \
         blocks=append table=append tolerance=0\n\
         compress at=start+0 clusters=16 shape=text skew=packed\n\
         overlay version=3 cluster_bits=12 refcount_order=4 features=none data_in=image size=same\n\
         read at=start+0 inside=700 length=900\n"
    );
    assemble(&text).unwrap()
}

fn program(rng_seed: u64) -> Program {
    let mut entropy = Entropy::new(rng_seed ^ 0xC4A1);
    let mut program = generate(rng_seed, GenerateSettings { operations: 24, compressed: true });
    let size = Size::new(1 + entropy.below(900) as u16, 14, entropy.below(2000) as i16).unwrap();
    program.prologue.size = size;
    let raw = if rng_seed.is_multiple_of(2) { Base::Raw } else { Base::SparseRaw };
    program.prologue.base = if entropy.one_in(4) { raw } else { Base::Qcow2 };
    program.prologue.data_in = if entropy.one_in(4) { DataIn::File } else { DataIn::Image };
    for _ in 0..1 + entropy.below(3) {
        let overlay = lines::operations(&lines::overlay(&mut entropy));
        let at = entropy.below(program.operations.len() as u64 + 1) as usize;
        program.operations.splice(at..at, overlay);
    }
    program
}
