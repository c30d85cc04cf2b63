//! Damaged images of every format.

use test_support::prelude::*;

use qcowfuzz::formats::anatomy::Part;

use super::headers::{combinations, fields};
use super::reasons::COMMANDS;
use crate::formats::comparison::{Kind, TestedFormat};
use crate::formats::program;
use crate::formats::vdi::Vdi;
use crate::formats::vhdx::Vhdx;
use crate::formats::vmdk::Vmdk;
use crate::formats::vpc::Vpc;
use test_support::planted::broken::{self, Broken};
use test_support::planted::broken_formats::{byte_cases, format_cases};

/// One header of this many is judged.
const HEADERS_OF: usize = 4;
/// The number of images of each format with random damage.
const DAMAGED: u64 = 130;
/// The number of images of each format that a program attacks.
const ATTACKED: u64 = 40;
/// The number of attacked qcow2 images, whose entries have more faults than those of other formats.
const ATTACKED_QCOW2: u64 = 240;

/// Random damage that shows rare named differences: the format, the seed and the command. If the damage changes, other
/// seeds have to be found.
const RARE: [(ImageFormat, u64, &str); 3] = [
    (ImageFormat::Vmdk, 15, "check"),
    (ImageFormat::Vmdk, 15, "convert"),
    (ImageFormat::Vmdk, 41, "convert"),
];
/// A program that makes the metadata of a VHDX image lie past 2^63.
const FAR_METADATA: u64 = 1133;
/// An image on which a map for people has two reasons to fail: a compressed cluster without a host offset, and then a
/// malformed entry.
const NO_OFFSET: Broken = Broken {
    rule: "cluster off a cluster boundary after a compressed one",
    image: "",
    build: "compress at=start+0 clusters=1 shape=text skew=packed; write at=start+1 clusters=1",
    damage: "l2 2 misalign 0",
    qemu: "Could not read file metadata",
};

/// A bitmap in use, which qemu-img loads only to check it, with a malformed entry.
const BITMAP_ENTRY: Broken = Broken {
    rule: "reserved bits in a bitmap table",
    image: "",
    build: "bitmap granularity=9 flags=in_use name=0; fill_bitmap index=0 entry=0 entries=1 fill=bits",
    damage: "bitmap_table 0 flip 60",
    qemu: "Check failed: Invalid argument",
};

/// The origin of an image.
enum Source {
    Bytes(Vec<u8>),
    Program(Program),
    /// Random damage, by a seed.
    Damaged(u64),
    /// A program with attacks, by a seed.
    Attacked(u64),
}

/// A damaged image, and the command that both programs run on it.
pub struct Case {
    name: String,
    source: Source,
    pub format: ImageFormat,
    pub command: &'static str,
    /// The form of the answer: "json" or "human".
    pub form: &'static str,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.command, self.format.name(), self.name)?;
        match &self.source {
            Source::Program(program) => write!(f, "\n{program}"),
            _ => Ok(()),
        }
    }
}

impl Case {
    /// Writes the image to `path`, and the files that it names beside it.
    pub fn write(&self, path: &Path) -> Checked<()> {
        match (&self.source, self.format) {
            (Source::Bytes(bytes), _) => fs::write(path, bytes).described(),
            (Source::Program(program), _) => write_attacked(path, program),
            (Source::Damaged(seed), ImageFormat::Vpc) => write_damaged::<Vpc>(path, *seed),
            (Source::Damaged(seed), ImageFormat::Vdi) => write_damaged::<Vdi>(path, *seed),
            (Source::Damaged(seed), ImageFormat::Vhdx) => write_damaged::<Vhdx>(path, *seed),
            (Source::Damaged(seed), ImageFormat::Vmdk) => write_damaged::<Vmdk>(path, *seed),
            (Source::Damaged(_), format) => Err(format!("no damage of {}", format.name())),
            (Source::Attacked(seed), format) => {
                let (base, parts) = match format {
                    ImageFormat::Vpc => (Base::of(ImageFormat::Vpc), Vpc::ATTACKED.1),
                    ImageFormat::Vdi => (Base::of(ImageFormat::Vdi), Vdi::ATTACKED.1),
                    ImageFormat::Vhdx => (Base::of(ImageFormat::Vhdx), Vhdx::ATTACKED.1),
                    ImageFormat::Vmdk => (Base::of(ImageFormat::Vmdk), Vmdk::ATTACKED.1),
                    _ => (Base::Qcow2, &Part::ALL[..Part::OF_QCOW2]),
                };
                program::write_attacked(path, (format, base), parts, *seed).map(drop)
            }
        }
    }
}

fn write_damaged<F: TestedFormat>(path: &Path, seed: u64) -> Checked<()> {
    F::write(path, Kind::Damaged, &mut Entropy::new(seed))
}

/// Writes the files that a program builds and damages.
fn write_attacked(path: &Path, program: &Program) -> Checked<()> {
    let mut hostile = TargetKind::Hostile.judging(Walker::default());
    let run = hostile.run(&program.encode(), Checks::AtCheckpoints);
    run.map_err(|failure| format!("{:?}", failure.violation))?;
    program::write_files(path, hostile.images())
}

/// Returns all images. The commands take turns.
pub fn cases() -> Vec<Case> {
    let mut all: Vec<(String, ImageFormat, Source)> = Vec::new();
    let headers = fields().into_iter().chain(combinations()).step_by(HEADERS_OF);
    all.extend(headers.map(|case| (case.name, ImageFormat::Qcow2, Source::Bytes(case.bytes))));
    for case in broken::cases() {
        let program = || Source::Program(case.program());
        all.extend(COMMANDS.map(|_| (case.rule.to_string(), ImageFormat::Qcow2, program())));
    }
    for case in format_cases() {
        let programs = case.programs().map(Source::Program);
        all.extend(programs.map(|program| (case.rule.to_string(), case.format, program)));
    }
    for case in byte_cases() {
        let bytes = case.programs().map(|program| Source::Bytes(case.changed(&program)));
        all.extend(bytes.map(|bytes| (case.rule.to_string(), case.format, bytes)));
    }
    for format in Base::other_formats() {
        let damaged = |seed| (format!("damage {seed}"), format, Source::Damaged(seed));
        let attacked = |seed| (format!("attack {seed}"), format, Source::Attacked(seed));
        all.extend((0..DAMAGED).map(damaged));
        all.extend((0..ATTACKED).map(attacked));
    }
    let attacked = |seed| (format!("attack {seed}"), ImageFormat::Qcow2, Source::Attacked(seed));
    all.extend((0..ATTACKED_QCOW2).map(attacked));
    all.push(("far metadata".to_string(), ImageFormat::Vhdx, Source::Attacked(FAR_METADATA)));
    let with_command =
        |((name, format, source), command)| Case { name, source, format, command, form: "json" };
    let mut cases: Vec<Case> =
        all.into_iter().zip(COMMANDS.into_iter().cycle()).map(with_command).collect();
    // The check reads a refcount table that does not matter for the other commands.
    let tables = fields().into_iter().filter(|case| case.name.contains("refcount_table_"));
    let tables = tables.map(|case| (case.name, ImageFormat::Qcow2, Source::Bytes(case.bytes)));
    cases.extend(tables.map(|case| with_command((case, "check"))));
    let rare = RARE.into_iter().map(|(format, seed, command)| {
        with_command(((format!("damage {seed}"), format, Source::Damaged(seed)), command))
    });
    cases.extend(rare);
    let no_offset = Source::Program(NO_OFFSET.program());
    let no_offset =
        with_command(((NO_OFFSET.rule.to_string(), ImageFormat::Qcow2, no_offset), "map"));
    cases.push(Case { form: "human", ..no_offset });
    let entry = Source::Program(BITMAP_ENTRY.program());
    cases.push(with_command(((BITMAP_ENTRY.rule.to_string(), ImageFormat::Qcow2, entry), "check")));
    cases
}
