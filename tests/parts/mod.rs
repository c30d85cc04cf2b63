//! Parts of the format, each with operations that bring it into a program and with a look at what the
//! program did, which tells whether it was there. Programs of random parts are held against qemu.

mod contents;
mod snapshots;

use qcowfuzz::entropy::Entropy;
use qcowfuzz::limits::Limits;
use qcowfuzz::vm::generate::{Wanted, generate};
use qcowfuzz::vm::operation::Prologue;
use qcowfuzz::vm::text::assemble;
use qcowfuzz::vm::{Effect, Operation, Program, Vm};

/// A part of the format.
#[derive(Clone, Copy)]
pub struct Part {
    /// Its name, as the test prints it.
    pub name: &'static str,
    /// What the image must be like from the beginning.
    pub prepare: fn(&mut Prologue),
    /// Operations that bring it in, as lines of text; they may differ from call to call.
    pub lines: fn(&mut Entropy) -> String,
    /// Whether a program had it.
    pub had: fn(&Trace) -> bool,
}

/// A part that needs nothing from the beginning.
pub const ANYWHERE: fn(&mut Prologue) = |_| {};

/// All parts.
pub fn all() -> Vec<Part> {
    [contents::PARTS, snapshots::PARTS].into_iter().flatten().copied().collect()
}

/// Parts that cannot be in one program, with the rule of the format that keeps them apart.
pub const APART: &[(&str, &str, &str)] = &[
    (
        "zeros that keep their cluster",
        "extra data without the disk's size",
        "version 3 has both sizes, version 2 no zero flag",
    ),
    ("zstd", "extra data without the disk's size", "version 2 has no compression type"),
    ("subclusters", "extra data without the disk's size", "version 2 has no extended L2"),
    (
        "a count at its order's maximum",
        "extra data without the disk's size",
        "version 2 counts in 16 bits, and limits allow no such number of snapshots",
    ),
];

/// What a program did.
pub struct Trace {
    /// Every operation with its effect.
    pub operations: Vec<(Operation, Effect)>,
    /// The machine at the end of the program.
    pub vm: Vm,
}

impl Trace {
    /// Runs a program to its end.
    pub fn of(program: &Program) -> Self {
        let mut vm = Vm::new();
        vm.begin(&program.prologue, Limits::WALKED);
        let operations = program.operations.iter().map(|one| (*one, vm.step(*one))).collect();
        Self { operations, vm }
    }

    /// Whether an operation like `wanted` changed something.
    pub fn changed(&self, wanted: fn(&Operation) -> bool) -> bool {
        self.operations.iter().any(|(one, effect)| *effect == Effect::Changed && wanted(one))
    }
}

/// A program with the `wanted` parts, each of them somewhere in it; a part may keep others out.
pub fn program(rng_seed: u64, wanted: &[Part]) -> Program {
    let mut entropy = Entropy::new(!rng_seed);
    let mut program = generate(rng_seed, Wanted { operations: 8, compressed: true });
    for part in wanted {
        (part.prepare)(&mut program.prologue);
    }
    for part in wanted {
        let lines = (part.lines)(&mut entropy);
        let added = assemble(&format!("{}{lines}", Program::default()))
            .unwrap_or_else(|error| panic!("{}: {error}\n{lines}", part.name));
        let at = entropy.below(program.operations.len() as u64 + 1) as usize;
        program.operations.splice(at..at, added.operations);
    }
    program
}
