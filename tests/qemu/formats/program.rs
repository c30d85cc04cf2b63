//! The images of our programs.

use test_support::prelude::*;

use qcowfuzz::formats::anatomy::Part;
use qcowfuzz::internal::images::damage::Transform;
use qcowfuzz::internal::images::export;
use qcowfuzz::internal::images::files::LayerFile;
use qcowfuzz::internal::images::layer_anatomy::LayerAnatomy;
use qcowfuzz::internal::programs::operand::{Anchor, At, Number, Size};
use qcowfuzz::programs::generate::vary_extents;

/// The length of the longest file that the file systems of most machines can hold.
pub const MAX_FILE_BYTES: u64 = 15 << 40;

/// Returns a program whose images have the format of `base`: one image, or some VMDK images with their parents.
pub fn program(base: Base, rng_seed: u64) -> Program {
    let mut program = generate_any(rng_seed, 4 + (rng_seed % 40) as usize);
    program.prologue.base = base;
    // Every bit occurs with every other.
    program.prologue.form = ImageForm((rng_seed as u16).wrapping_mul(0x9e37));
    if base.format() == ImageFormat::Vmdk {
        vary_extents(&mut program, &mut Entropy::new(rng_seed));
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
        let file = File::create(path).described()?;
        export::write(image, &file, Holes::Keep).described()?;
    }
    Ok(())
}

/// The length of the longest file that a test writes.
const MAX_ATTACKED_FILE_BYTES: u64 = 1 << 40;
/// The largest number of grains or blocks of a disk: qemu-img visits each of them.
const MAX_BLOCKS: u64 = 1 << 17;

/// Returns a program with an image of a format, and with one to three attacks. The seeds take turns through the pairs
/// of part and transform.
fn attacking(base: Base, parts: &[Part], rng_seed: u64, entropy: &mut Entropy) -> Program {
    let mut program = program(base, rng_seed);
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
        program.operations.extend(lines::operations(&cut));
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
    anatomy.read(files).described()?;
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
pub fn write_attacked(
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
        let is_long = |(_, file): (_, &Image)| file.length_bytes() > MAX_ATTACKED_FILE_BYTES;
        if images.files(&names).any(is_long) || !is_quick(format, images) {
            continue;
        }
        write_files(path, images)?;
        let attacked = attacked(&program, &mut hostile)?;
        return Ok((attacked, program));
    }
    Err("no quick image".to_string())
}

/// A field of the form: its name, its first bit and the number of bits, as `docs/bytecode.md` states them.
pub type Field = (&'static str, u32, u32);

pub const VPC_FIELDS: &[Field] = &[
    ("creator", 0, 3),
    ("fixed", 3, 1),
    ("no footer at the end", 4, 1),
    ("distance of the header", 5, 2),
    ("table behind", 7, 1),
    ("distance of the table", 8, 2),
];

pub const VDI_FIELDS: &[Field] = &[
    ("static", 0, 1),
    ("distance of the map", 1, 2),
    ("distance of the data", 3, 2),
    ("text", 5, 2),
    ("long header", 7, 1),
];

const VHDX_FIELDS: &[Field] = &[
    ("header that counts", 0, 1),
    ("other header", 1, 2),
    ("order", 3, 3),
    ("behind all blocks", 6, 1),
    ("gaps", 7, 1),
    ("unknown structures", 8, 1),
    ("reverse order", 9, 1),
    ("longer file", 10, 1),
    ("old log entry", 11, 1),
    ("physical sector", 12, 1),
    ("fixed", 13, 1),
    ("state of absent blocks", 14, 2),
];

pub const VMDK_FIELDS: &[Field] = &[
    ("entries of a table", 0, 3),
    ("kind", 3, 3),
    ("no redundant directory", 6, 1),
    ("tables behind", 7, 1),
    ("version", 8, 2),
    ("zero grains", 10, 1),
    ("adapter", 11, 2),
    ("further lines", 13, 1),
    ("unused sectors", 14, 2),
];

/// Returns the fields of the form of a format.
pub fn fields(base: Base) -> &'static [Field] {
    match base {
        Base::Other(ImageFormat::Vpc, _) => VPC_FIELDS,
        Base::Other(ImageFormat::Vdi, _) => VDI_FIELDS,
        Base::Other(ImageFormat::Vhdx, _) => VHDX_FIELDS,
        _ => VMDK_FIELDS,
    }
}
