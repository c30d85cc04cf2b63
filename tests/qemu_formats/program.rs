//! The images of our programs.

use std::fs::File;
use std::path::Path;

use qcowfuzz::harness::{Checks, Harness, Walker};
use qcowfuzz::internal::images::export::{self, Holes};
use qcowfuzz::internal::programs::operand::{Base, ImageForm};
use qcowfuzz::programs::generate::generate_any;
use qcowfuzz::programs::{Operation, Program};

use crate::qemu::Checked;

/// Returns a program with one image, whose format is that of `base`.
pub fn program(base: Base, rng_seed: u64) -> Program {
    let mut program = generate_any(rng_seed, 4 + (rng_seed % 40) as usize);
    program.operations.retain(|one| !matches!(one, Operation::Overlay { .. }));
    program.prologue.base = base;
    // Every bit occurs with every other.
    program.prologue.form = ImageForm((rng_seed as u16).wrapping_mul(0x9e37));
    program
}

/// Writes the image of a program to `path`. All oracles must agree with it first.
pub fn write(path: &Path, base: Base, rng_seed: u64) -> Checked<()> {
    let mut harness = Harness::new(Walker::default());
    let program = program(base, rng_seed);
    let run = harness.run(&program.encode(), Checks::AtCheckpoints);
    run.map_err(|failure| format!("{:?}\n{program}", failure.violation))?;
    let file = File::create(path).map_err(|error| error.to_string())?;
    export::write(harness.image(), &file, Holes::Keep).map_err(|error| error.to_string())
}
