//! Parts of the format, each with operations that bring it into a program and with a look at what the
//! program did, which tells whether it was there. Programs of random parts are held against qemu.

mod bitmaps;
mod chains;
mod contents;
mod headers;

use qcowfuzz::build::Scratch;
use qcowfuzz::entropy::Entropy;
use qcowfuzz::images::{FileNames, Images};
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
    parts().into_iter().flatten().copied().collect()
}

fn parts() -> [&'static [Part]; 4] {
    [contents::PARTS, chains::PARTS, headers::PARTS, bitmaps::PARTS]
}

/// Parts that cannot be in one program, with the rule of the format that keeps them apart.
pub fn apart() -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str)> {
    chains::APART.iter().chain(headers::APART).chain(bitmaps::APART)
}

/// What a program did.
pub struct Trace {
    /// Every operation with its effect.
    pub operations: Vec<(Operation, Effect)>,
    /// The machine at the end of the program.
    pub vm: Vm,
    /// What it built.
    pub images: Images,
}

impl Trace {
    /// Runs a program to its end.
    pub fn of(program: &Program) -> Self {
        let mut vm = Vm::new();
        vm.begin(&program.prologue, Limits::WALKED);
        let operations = program.operations.iter().map(|one| (*one, vm.step(*one))).collect();
        let mut images = Images::default();
        vm.build(&FileNames::default(), &mut Scratch::default(), &mut images);
        Self { operations, vm, images }
    }

    /// Whether an operation like `wanted` changed something.
    pub fn changed(&self, wanted: fn(&Operation) -> bool) -> bool {
        self.operations.iter().any(|(one, effect)| *effect == Effect::Changed && wanted(one))
    }
}

/// Parts for one program, some of all. A chain takes what was done before for a lower layer, so that half
/// of all programs have none.
pub fn some(entropy: &mut Entropy) -> Vec<Part> {
    let chained = entropy.one_in(2);
    let mut parts: Vec<Part> = chains::PARTS.to_vec();
    parts.retain(|_| chained && entropy.one_in(4));
    let others = [contents::PARTS, headers::PARTS, bitmaps::PARTS].into_iter().flatten();
    parts.extend(others.filter(|_| entropy.one_in(3)));
    parts
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
