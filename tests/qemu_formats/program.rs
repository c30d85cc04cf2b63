//! The images of our programs.

use std::fs::File;
use std::path::Path;

use qcowfuzz::harness::{Checks, Harness, Walker};
use qcowfuzz::images::{FileNames, Images};
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::internal::images::export::{self, Holes};
use qcowfuzz::internal::programs::operand::{Base, ImageForm};
use qcowfuzz::programs::generate::{generate_any, vary_vmdk};
use qcowfuzz::programs::{Operation, Program};

use crate::qemu::Checked;

/// The length of the longest file that the file systems of most machines can hold.
pub const MAX_FILE_BYTES: u64 = 15 << 40;

/// Returns a program whose images have the format of `base`: one image, or some VMDK images with their parents.
pub fn program(base: Base, rng_seed: u64) -> Program {
    let mut program = generate_any(rng_seed, 4 + (rng_seed % 40) as usize);
    program.prologue.base = base;
    // Every bit occurs with every other.
    program.prologue.form = ImageForm((rng_seed as u16).wrapping_mul(0x9e37));
    if base == Base::Vmdk {
        vary_vmdk(&mut program, &mut Entropy::new(rng_seed));
    }
    program.operations.retain(|one| !matches!(one, Operation::Overlay { .. }));
    program
}

/// Writes the image of a program to `path`, and its parents beside it. All oracles must agree with them first.
pub fn write(path: &Path, program: &Program) -> Checked<()> {
    let mut harness = Harness::new(Walker::default());
    let run = harness.run(&program.encode(), Checks::AtCheckpoints);
    run.map_err(|failure| format!("{:?}\n{program}", failure.violation))?;
    write_files(path, harness.images())
}

/// Writes the image at the top to `path`, and all other files beside it.
pub fn write_files(path: &Path, images: &Images) -> Checked<()> {
    for (name, image) in images.files(&FileNames::default()) {
        let path = name.map_or(path.to_path_buf(), |name| path.with_file_name(name));
        let file = File::create(path).map_err(|error| error.to_string())?;
        export::write(image, &file, Holes::Keep).map_err(|error| error.to_string())?;
    }
    Ok(())
}
