//! Images of our programs that the programs themselves damage.

use std::path::Path;

use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::disk::storage::Storage;
use qcowfuzz::formats::anatomy::Part;
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::harness::{Checks, Harness, Walker};
use qcowfuzz::images::{FileNames, Image, Images};
use qcowfuzz::internal::images::damage::Transform;
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::internal::images::files::LayerFile;
use qcowfuzz::internal::images::layer_anatomy::LayerAnatomy;
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
fn is_quick(format: ImageFormat, images: &Images) -> bool {
    let chain: Vec<_> = images.layers().map(|files| files.layer()).collect();
    let Ok(disk) = Disk::open_as(format, &chain) else { return true };
    let mut anatomy = LayerAnatomy::default();
    // A part of the image may be malformed.
    let _ = anatomy.read(images.top());
    let block_bytes = anatomy.files().filter_map(|(_, anatomy)| {
        match (anatomy.grain_tables(), anatomy.cluster_size()) {
            (Some(tables), _) => Some(tables.grain_bytes()),
            (None, block) => block.map(|it| it.bytes()),
        }
    });
    let block_bytes = block_bytes.min().unwrap_or(512);
    disk.virtual_size_bytes() / block_bytes.max(512) < MAX_BLOCKS
}

/// Returns the names of the attacked parts of the image, and of the kinds of files beside it that attacks reach.
fn attacked(program: &Program, hostile: &mut Harness) -> Checked<Vec<String>> {
    let mut sound = program.clone();
    sound
        .operations
        .retain(|one| !matches!(one, Operation::Patch { .. } | Operation::Truncate { .. }));
    let run = hostile.run(&sound.encode(), Checks::AtCheckpoints);
    run.map_err(|failure| format!("{:?}\n{sound}", failure.violation))?;
    let files = hostile.images().top();
    let mut anatomy = LayerAnatomy::default();
    anatomy.read(files).map_err(|error| error.to_string())?;
    let mut attacked = Vec::new();
    for operation in &program.operations {
        let Operation::Patch { part, nth, .. } = operation else { continue };
        attacked.push(part.name().to_string());
        if let Some((LayerFile::Extent(index), _)) = anatomy.element(*part, *nth) {
            let extent = files.file(LayerFile::Extent(index));
            let kind = match &extent.number(HostOffset::ZERO, 4).to_be_bytes()[4..] {
                b"KDMV" => "sparse",
                b"COWD" => "ESX",
                _ => "seSparse",
            };
            attacked.push(format!("{kind} extents in files of their own"));
        }
    }
    Ok(attacked)
}

/// Writes the damaged image of a program to `path`. The oracle `hostile` must agree with it first. Returns the names of
/// the attacked parts, and the program.
pub fn write(
    path: &Path,
    (format, base): (ImageFormat, Base),
    parts: &[Part],
    rng_seed: u64,
) -> Checked<(Vec<String>, Program)> {
    let mut entropy = Entropy::new(rng_seed);
    let mut hostile = TargetKind::Hostile.judging(Walker::default());
    for attempt in 0.. {
        let program = attacking(base, parts, rng_seed + attempt * 10_000, &mut entropy);
        let run = hostile.run(&program.encode(), Checks::AtCheckpoints);
        run.map_err(|failure| format!("{:?}\n{program}", failure.violation))?;
        let images = hostile.images();
        let names = FileNames::default();
        let is_long = |(_, file): (_, &Image)| file.length_bytes() > MAX_FILE_BYTES;
        if images.files(&names).any(is_long) || !is_quick(format, images) {
            continue;
        }
        program::write_files(path, images)?;
        let attacked = attacked(&program, &mut hostile)?;
        return Ok((attacked, program));
    }
    Err("no quick image".to_string())
}
