//! The images of our programs.

use std::fs::File;
use std::path::Path;

use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::harness::{Checks, Harness, Walker};
use qcowfuzz::images::{FileNames, Images};
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::internal::images::export::{self, Holes};
use qcowfuzz::internal::programs::operand::{Anchor, At, Base, ImageForm, Size};
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
    if base.format() == ImageFormat::Vmdk {
        vary_vmdk(&mut program, &mut Entropy::new(rng_seed));
    }
    program.operations.retain(|one| !matches!(one, Operation::Overlay { .. }));
    program
}

/// Returns a program with the large base in the format of `base`, and a disk of 4 to 20 GiB if its clusters allow it.
/// Each write to the beginning of a table also goes to the end of the disk.
pub fn large(base: Base, rng_seed: u64) -> Program {
    let mut program = program(base.with_reach(Base::large(ImageFormat::Vpc).reach()), rng_seed);
    let tail = [0, 512, -512, 1][rng_seed as usize % 4];
    program.prologue.size = Size::new(17 + (rng_seed % 63) as u16, 28, tail).unwrap();
    program.operations.retain(|one| {
        // Files of such a length do not fit on most file systems, and a resize makes most disks small.
        let has_gap = matches!(one, Operation::Reserve { .. } | Operation::ReserveFar { .. });
        !has_gap && !matches!(one, Operation::Resize { .. })
    });
    let at_end = |one: &Operation| match *one {
        Operation::Write { at: At { anchor: Anchor::Table | Anchor::Start, steps }, clusters } => {
            Some(Operation::Write { at: At { anchor: Anchor::End, steps }, clusters })
        }
        _ => None,
    };
    let more: Vec<_> = program.operations.iter().filter_map(at_end).collect();
    program.operations.extend(more);
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
