//! Parts of the format. Each has operations that bring it into a program, and a function that reports whether a run of
//! the program had it. The tests compare programs of random parts with qemu.

mod bitmaps;
mod chains;
mod contents;
mod files;
mod headers;
mod payloads;
mod snapshots;

use files::{CUT_DATA, GARBAGE_TAIL, PAYLOAD_BYTE, PAYLOAD_SECTOR, ZERO_TAIL};
use payloads::{DEFLATE_CODINGS, ZSTD_CODINGS};
use qcowfuzz::internal::programs::interpreter::{Effect, Vm};
use qcowfuzz::internal::programs::prologue::Prologue;
use test_support::prelude::*;

/// A part of the format.
#[derive(Clone, Copy)]
pub struct Part {
    /// The name that the test prints.
    pub name: &'static str,
    /// Changes the prologue to one that allows the part.
    pub prepare: fn(&mut Prologue),
    /// Returns operations that bring it in, as lines of text, which may differ between calls.
    pub lines: fn(&mut Entropy) -> String,
    /// Reports whether a program had it.
    pub had: fn(&Trace) -> bool,
}

/// The preparation of a part that has no requirements: leaves the prologue as it is.
pub const ANYWHERE: fn(&mut Prologue) = |_| {};

/// Returns all parts.
pub fn all() -> Vec<Part> {
    parts().into_iter().flatten().copied().collect()
}

fn parts() -> [&'static [Part]; 7] {
    [
        contents::PARTS,
        chains::PARTS,
        headers::PARTS,
        bitmaps::PARTS,
        files::PARTS,
        payloads::PARTS,
        snapshots::PARTS,
    ]
}

/// Reports whether two parts can occur in one program.
pub fn allowed(one: &Part, other: &Part) -> bool {
    let mut apart = APART.iter().chain(chains::APART).chain(headers::APART).chain(bitmaps::APART);
    let names = [(one.name, other.name), (other.name, one.name)];
    let versions = |(a, b): &(&str, &str)| *a == VERSION_2 && VERSION_3.contains(b);
    !apart.any(|(a, b, _)| names.contains(&(a, b))) && !names.iter().any(versions)
}

/// The parts that only version 2 allows.
const VERSION_2: &str = "extra data without the disk's size";

/// The parts that version 2 lacks: feature bits and the features that they announce, the zero flag, headers of any
/// length, narrow refcounts.
const VERSION_3: &[&str] = &[
    "zeros that keep their cluster",
    "zstd",
    "subclusters",
    "a count at its order's maximum",
    "zstd in codings of its own",
    "a header of 104 bytes",
    "a header of 105 bytes",
    "a header of 112 bytes",
    "a longer header of odd length",
    "a header as long as the cluster",
    "unknown header fields",
    "unknown compatible bits",
    "unknown autoclear bits",
    "the dirty bit",
    "the corrupt bit",
    "lazy refcounts",
    "counts that are too low",
    "counts that are too high",
    "free clusters that are counted",
    "bitmaps",
    "a bitmap in use",
    "bits of a bitmap",
    "the bitmaps bit without the extension",
    "the bitmaps extension without its bit",
];

/// The pairs of parts that exclude each other, each with the rule of the format that forbids them together.
const APART: &[(&str, &str, &str)] = &[
    (PAYLOAD_BYTE, PAYLOAD_SECTOR, ONE_END),
    (PAYLOAD_BYTE, CUT_DATA, ONE_END),
    (PAYLOAD_BYTE, ZERO_TAIL, ONE_END),
    (PAYLOAD_BYTE, GARBAGE_TAIL, ONE_END),
    (PAYLOAD_SECTOR, CUT_DATA, ONE_END),
    (PAYLOAD_SECTOR, ZERO_TAIL, ONE_END),
    (PAYLOAD_SECTOR, GARBAGE_TAIL, ONE_END),
    (CUT_DATA, ZERO_TAIL, ONE_END),
    (CUT_DATA, GARBAGE_TAIL, ONE_END),
    (ZERO_TAIL, GARBAGE_TAIL, ONE_END),
    (DEFLATE_CODINGS, "zstd", ONE_COMPRESSION),
    (DEFLATE_CODINGS, ZSTD_CODINGS, ONE_COMPRESSION),
    (ZSTD_CODINGS, "a header of 104 bytes", "the compression type lies behind them"),
];

const ONE_END: &str = "a file has one end";
const ONE_COMPRESSION: &str = "an image has one compression type";

/// The record of a program's run.
pub struct Trace {
    /// Every operation with its effect.
    pub operations: Vec<(Operation, Effect)>,
    /// The machine at the end of the program.
    pub vm: Vm,
    /// The files that it built.
    pub images: Images,
}

impl Trace {
    /// Runs a program to its end.
    pub fn of(program: &Program) -> Self {
        let mut vm = Vm::new();
        vm.begin(&program.prologue, Limits::WALKED);
        let operations = program.operations.iter().map(|one| (*one, vm.step(*one))).collect();
        let mut images = Images::default();
        vm.build(&FileNames::default(), &mut images, &());
        Self { operations, vm, images }
    }

    /// Returns the operations on the image at the top.
    pub fn top_operations(&self) -> &[(Operation, Effect)] {
        let overlay = |(one, effect): &(Operation, Effect)| {
            one.class() == Class::Overlays && *effect == Effect::Changed
        };
        let first = self.operations.iter().rposition(overlay).map_or(0, |at| at + 1);
        &self.operations[first..]
    }

    /// Reports whether an operation that is `wanted` changed the image at the top.
    pub fn changed(&self, wanted: fn(&Operation) -> bool) -> bool {
        self.top_operations().iter().any(|(one, effect)| *effect == Effect::Changed && wanted(one))
    }
}

/// Returns a random selection of parts for one program. Half of all programs have no chain, because a chain turns the
/// work of earlier operations into a lower layer.
pub fn some(entropy: &mut Entropy) -> Vec<Part> {
    let chained = entropy.one_in(2);
    let mut parts: Vec<Part> = chains::PARTS.to_vec();
    parts.retain(|_| chained && entropy.one_in(4));
    let others =
        all().into_iter().filter(|part| chains::PARTS.iter().all(|it| it.name != part.name));
    parts.extend(others.filter(|_| entropy.one_in(4)));
    parts
}

/// Returns a program with the operations of the `wanted` parts in random order. A part may keep others from taking
/// effect.
pub fn program(rng_seed: u64, wanted: &[Part]) -> Program {
    let mut entropy = Entropy::new(!rng_seed);
    let mut program = generate(rng_seed, GenerateSettings { operations: 8, compressed: true });
    for part in wanted {
        (part.prepare)(&mut program.prologue);
    }
    for part in wanted {
        let added = lines::operations(&(part.lines)(&mut entropy));
        let at = entropy.below(program.operations.len() as u64 + 1) as usize;
        program.operations.splice(at..at, added);
    }
    program
}
