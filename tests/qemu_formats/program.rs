//! The images of our programs.

use std::fs::File;
use std::path::Path;

use qcowfuzz::disk::storage::Storage;
use qcowfuzz::harness::{Checks, Harness, Walker};
use qcowfuzz::internal::images::export::{self, Holes};
use qcowfuzz::internal::programs::operand::{Base, ImageForm};
use qcowfuzz::internal::programs::operation::Class;
use qcowfuzz::programs::generate::generate_any;
use qcowfuzz::programs::{Operation, Program};

use crate::qemu::Checked;

/// The length of the longest file that the file systems of most machines can hold.
const MAX_FILE_BYTES: u64 = 15 << 40;

/// Returns a program with one image, whose format is that of `base`.
pub fn program(base: Base, rng_seed: u64) -> Program {
    let mut program = generate_any(rng_seed, 4 + (rng_seed % 40) as usize);
    program.operations.retain(|one| one.class() != Class::Overlays);
    program.prologue.base = base;
    // Every bit occurs with every other.
    program.prologue.form = ImageForm((rng_seed as u16).wrapping_mul(0x9e37));
    program
}

/// Writes the image of a program to `path`. All oracles must agree with it first.
pub fn write(path: &Path, base: Base, rng_seed: u64) -> Checked<()> {
    let mut harness = Harness::new(Walker::default());
    let mut program = program(base, rng_seed);
    run(&mut harness, &program)?;
    if harness.image().length_bytes() > MAX_FILE_BYTES {
        let is_gap = |one: &Operation| {
            matches!(one, Operation::Reserve { .. } | Operation::ReserveFar { .. })
        };
        program.operations.retain(|one| !is_gap(one));
        run(&mut harness, &program)?;
    }
    let file = File::create(path).map_err(|error| error.to_string())?;
    export::write(harness.image(), &file, Holes::Keep).map_err(|error| error.to_string())
}

/// Runs a program, with all oracles.
fn run(harness: &mut Harness<Walker>, program: &Program) -> Checked<()> {
    let run = harness.run(&program.encode(), Checks::AtCheckpoints);
    run.map(|_| ()).map_err(|failure| format!("{:?}\n{program}", failure.violation))
}
