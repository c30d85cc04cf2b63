//! Images of our programs that the programs themselves damage.

use std::path::Path;

use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::disk::storage::{Layer, Storage};
use qcowfuzz::harness::target::Target;
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::harness::{Checks, Walker};
use qcowfuzz::images::{FileNames, Image};
use qcowfuzz::internal::formats::anatomy::{Anatomy, Part};
use qcowfuzz::internal::images::damage::Transform;
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::internal::programs::operand::{Base, Number};
use qcowfuzz::programs::{Operation, Program};
use qcowfuzz::walkers::Disk;

use crate::program;
use crate::qemu::Checked;

/// The length of the longest file that a test writes.
const MAX_FILE_BYTES: u64 = 1 << 40;
/// The largest number of grains or blocks of a disk: qemu-img visits each of them.
const MAX_BLOCKS: u64 = 1 << 17;

/// Returns a program with an image of a format, and with one to three attacks. The seeds take turns through the pairs
/// of part and transform.
fn attacking(base: Base, parts: &[Part], rng_seed: u64, entropy: &mut Entropy) -> Program {
    let mut program = program::program(base, rng_seed);
    program.operations.retain(|one| !matches!(one, Operation::ReserveFar { .. }));
    let pairs = parts.len() * Transform::ALL.len();
    for more in 0..1 + entropy.below(3) / 2 * 2 {
        let pair = (rng_seed + more * 37) as usize % pairs;
        let part = parts[pair % parts.len()];
        let transform = Transform::ALL[pair / parts.len()];
        // An odd number keeps the checksum right.
        let nth = entropy.below(80) as u16 | u16::from(!entropy.one_in(4));
        let value = match entropy.one_in(2) {
            true => entropy.below(24) as u16,
            false => entropy.next_u64() as u16,
        };
        let depth = Number::LOWEST;
        program.operations.push(Operation::Patch { part, depth, nth, transform, value });
    }
    if entropy.one_in(16) {
        let cut = format!("truncate depth=0 cut={}<<{}", 1 + entropy.below(255), entropy.below(14));
        program.operations.extend(crate::lines::operations(&cut));
    }
    program
}

/// Reports whether qemu-img answers in a moment.
fn is_quick(format: ImageFormat, image: &Image) -> bool {
    let chain = [Layer::alone(image)];
    let Ok(disk) = Disk::open_as(format, &chain) else { return true };
    let mut anatomy = Anatomy::default();
    // A part of the image may be malformed.
    let _ = anatomy.read(format, image);
    let block_bytes = match (anatomy.grain_tables(), anatomy.cluster_size()) {
        (Some(tables), _) => tables.grain_bytes(),
        (None, Some(block)) => block.bytes(),
        (None, None) => 512,
    };
    disk.virtual_size_bytes() / block_bytes.max(512) < MAX_BLOCKS
}

/// Writes the damaged image of a program to `path`. The oracle `hostile` must agree with it first. Returns the attacked
/// parts, and the program.
pub fn write(
    path: &Path,
    (format, base): (ImageFormat, Base),
    parts: &[Part],
    rng_seed: u64,
) -> Checked<(Vec<Part>, Program)> {
    let mut entropy = Entropy::new(rng_seed);
    let mut hostile = TargetKind::Hostile.judging(Walker::default());
    for attempt in 0.. {
        let program = attacking(base, parts, rng_seed + attempt * 10_000, &mut entropy);
        let run = hostile.run(&program.encode(), Checks::AtCheckpoints);
        run.map_err(|failure| format!("{:?}\n{program}", failure.violation))?;
        let images = hostile.pipeline().ok_or("no pipeline")?.images();
        let names = FileNames::default();
        let is_long = |(_, file): (_, &Image)| file.length_bytes() > MAX_FILE_BYTES;
        if images.files(&names).any(is_long) || !is_quick(format, &images.top().image) {
            continue;
        }
        program::write_files(path, images)?;
        let attacked = program.operations.iter().filter_map(|one| match one {
            Operation::Patch { part, .. } => Some(*part),
            _ => None,
        });
        return Ok((attacked.collect(), program));
    }
    Err("no quick image".to_string())
}
