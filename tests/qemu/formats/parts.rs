//! The parts of images in other formats than qcow2: the values of each field of the form, cluster sizes, sizes of the
//! disk, and operations that take effect. Programs that together have every part often and every pair of parts that the
//! format allows together.
//!
//! No list says which pairs are allowed. The test tries each pair in all kinds of images that the format has: the pair
//! is allowed if some image has both parts.

use test_support::prelude::*;

use qcowfuzz::internal::programs::interpreter::{Effect, Vm};

use super::program::{Field, VDI_FIELDS, VMDK_FIELDS, VPC_FIELDS, fields};
use crate::formats::program::{MAX_FILE_BYTES, program};

/// The lowest number of programs that must have each part.
pub const ENOUGH: u32 = 20;
/// The number of attempts to make a program for a pair, or for a part that is too rare.
const TRIES: u64 = 64;

/// The operations: the name of a part, the name of the operation, and lines in which it takes effect, if it may.
const OPERATIONS: &[(&str, &str, &str)] = &[
    ("compress", "compress", "compress at=start+1 clusters=1 shape=half skew=packed"),
    ("compress_as", "compress_as", "compress_as at=start+1 shape=text coding=fixed skew=packed"),
    ("write", "write", "write at=start+1 clusters=2"),
    ("zero", "zero", "write at=start+1 clusters=3\nzero at=start+2 clusters=1 keep=no"),
    ("zero that keeps", "zero", "write at=start+1 clusters=3\nzero at=start+3 clusters=1 keep=yes"),
    ("discard", "discard", "write at=start+0 clusters=4\ndiscard at=start+1 clusters=1"),
    ("preallocate", "preallocate", "preallocate at=start+2 clusters=2"),
    ("place", "place", "place policy=random\nwrite at=start+1 clusters=2"),
    ("reserve", "reserve", "reserve gap=3<<1\nwrite at=start+2 clusters=1"),
    ("reserve_far", "reserve_far", "reserve_far gap=3<<20\nwrite at=start+2 clusters=1"),
    ("resize", "resize", "resize size=3<<23+0\nwrite at=start+1 clusters=1"),
    ("spare", "spare", "spare table=0 l1=9<<0"),
    ("beyond, data", "beyond", "beyond table=0 distance=1 clusters=2 kind=data"),
    ("beyond, zeros", "beyond", "beyond table=0 distance=1 clusters=2 kind=zeros"),
    ("look mbr", "write_as", "write_as at=start+0 clusters=1 look=mbr"),
    ("look qcow2", "write_as", "write_as at=start+0 clusters=1 look=qcow2"),
    ("look vmdk", "write_as", "write_as at=start+0 clusters=1 look=vmdk"),
    ("look cowd", "write_as", "write_as at=start+0 clusters=1 look=cowd"),
    ("look descriptor", "write_as", "write_as at=start+0 clusters=1 look=descriptor"),
    ("look vpc", "write_as", "write_as at=start+0 clusters=1 look=vpc"),
    ("look vpc_end", "write_as", "write_as at=start+0 clusters=1 look=vpc_end"),
    ("look vhdx", "write_as", "write_as at=start+0 clusters=1 look=vhdx"),
    ("look luks", "write_as", "write_as at=start+0 clusters=1 look=luks"),
    ("look vdi", "write_as", "write_as at=start+0 clusters=1 look=vdi"),
    ("look parallels", "write_as", "write_as at=start+0 clusters=1 look=parallels"),
    // These begin the image again, so that they come first: the later of two parts is the first in a program.
    ("flat extent", "extent", "extent kind=flat length=1<<1 lead=3"),
    ("VMFS extent", "extent", "extent kind=vmfs length=1<<1 lead=0"),
    ("sparse extent", "extent", "extent kind=sparse length=1<<1 lead=0"),
    ("COWD extent", "extent", "extent kind=vmfs_sparse length=1<<1 lead=0"),
    ("seSparse extent", "extent", "extent kind=se_sparse length=1<<1 lead=0"),
    ("parent", "overlay_vmdk", "overlay_vmdk cluster_bits=12 form=0 size=same"),
];

/// The number of operations for extents and for parents, which are the last ones.
const ONLY_VMDK: usize = 6;

/// The number of operations for compressed data, which are the first ones.
const COMPRESSING: usize = 2;

/// The names of the parts about the size of the disk.
const SIZES: [&str; 6] =
    ["no bytes", "a part of a block", "a cut block", "whole blocks", "200 blocks", "4 GiB"];

/// A part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A value of a field of the form.
    Form(Field, u16),
    /// A number of bits of a cluster, as the prologue states it.
    ClusterBits(u8),
    /// A size of the disk: an index of [`SIZES`].
    Size(usize),
    /// An operation that takes effect: an index of [`OPERATIONS`].
    Operation(usize),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form((name, ..), value) => write!(f, "{name} {value}"),
            Self::ClusterBits(bits) => write!(f, "cluster bits {bits}"),
            Self::Size(index) => f.write_str(SIZES[*index]),
            Self::Operation(index) => f.write_str(OPERATIONS[*index].0),
        }
    }
}

fn value_of((_, first, bits): Field, form: u16) -> u16 {
    form >> first & ((1 << bits) - 1)
}

fn with((_, first, bits): Field, form: u16, value: u16) -> u16 {
    let mask = ((1 << bits) - 1) << first;
    form & !mask | value << first
}

/// Returns all parts of a format.
fn parts(base: Base) -> Vec<Part> {
    let forms = fields(base).iter().flat_map(|field| {
        let values = 0..1u16 << field.2;
        values.map(|value| Part::Form(*field, value))
    });
    // VHDX has blocks of 2^28 bytes at most.
    let bits = match base.format() {
        ImageFormat::Vhdx => 9..=17,
        // QEMU opens blocks of 1 MiB only.
        ImageFormat::Vdi => 20..=20,
        _ => 9..=21,
    };
    let others = bits.map(Part::ClusterBits).chain((0..SIZES.len()).map(Part::Size));
    // Only VMDK has compressed grains, and files beside the image.
    let operations = match base {
        Base::Other(ImageFormat::Vmdk, _) => 0..OPERATIONS.len(),
        _ => COMPRESSING..OPERATIONS.len() - ONLY_VMDK,
    };
    forms.chain(others).chain(operations.map(Part::Operation)).collect()
}

/// Reports whether a field of the form has a meaning in an image of this form.
fn has_meaning(base: Base, (name, ..): Field, form: u16) -> bool {
    let value = |wanted: &str| {
        let field = fields(base).iter().find(|(name, ..)| *name == wanted);
        field.map_or(0, |field| value_of(*field, form))
    };
    match base {
        // A fixed disk is its data and a footer.
        Base::Other(ImageFormat::Vpc, _) => {
            value("fixed") == 0 || matches!(name, "creator" | "fixed")
        }
        // An extent as ESX writes it has tables of 4,096 entries, no version and a short descriptor.
        Base::Other(ImageFormat::Vmdk, _) => {
            value("kind") != 3 || matches!(name, "kind" | "tables behind" | "unused sectors")
        }
        _ => true,
    }
}

/// Returns the number of bits of a block, from that of a cluster. VHDX has larger blocks, of 2^28 bytes at most.
fn block_bits(base: Base, bits: u8) -> u8 {
    match base.format() {
        ImageFormat::Vhdx => (bits + 11).min(28),
        ImageFormat::Vdi => 20,
        _ => bits,
    }
}

/// The run of a program. Its parts are those of the image at the top.
struct Run {
    base: Base,
    program: Program,
    /// The operations on the image, with their effects.
    effects: Vec<(Operation, Effect)>,
    /// The image has compressed grains.
    is_compressed: bool,
    /// The form of the image, and the size of the disk and of a block in bytes.
    form: u16,
    size: u64,
    block: u64,
    /// The length of the longest file.
    file_bytes: u64,
}

impl Run {
    fn of(program: Program, images: &mut Images) -> Self {
        let mut vm = Vm::new();
        vm.begin(&program.prologue, Limits::WALKED);
        let mut effects = Vec::new();
        for operation in &program.operations {
            let effect = vm.step(*operation);
            if operation.class() == Class::Overlays && effect == Effect::Changed {
                effects.clear();
            }
            effects.push((*operation, effect));
        }
        vm.build(&FileNames::default(), images, &());
        let plan = vm.builder().plan();
        Self {
            base: program.prologue.base,
            is_compressed: program.prologue.base == Base::of(ImageFormat::Vmdk)
                && plan.file.extents.all().is_empty()
                && value_of(VMDK_FIELDS[1], plan.file.form) >= 4,
            form: plan.file.form,
            size: plan.virtual_size_bytes(),
            block: plan.geometry.cluster_size.bytes(),
            file_bytes: images
                .files(&FileNames::default())
                .map(|(_, image)| image.length_bytes())
                .max()
                .unwrap_or(0),
            effects,
            program,
        }
    }

    /// Reports whether clusters of the image may have the look of a part. There are no looks of VHD
    /// where they would make a VHD image ambiguous; all blocks of a fixed one count as such.
    fn has_look(&self, part: &str) -> bool {
        let is_set = |at: usize| {
            self.base == Base::of(ImageFormat::Vpc) && value_of(VPC_FIELDS[at], self.form) == 1
        };
        let is_vhd = ["look vpc", "look vpc_end"].contains(&part);
        !self.is_compressed && !(is_vhd && (is_set(1) || is_set(2)))
    }

    fn has(&self, part: &Part) -> bool {
        let (rest, blocks) = (self.size % self.block, self.size / self.block);
        match *part {
            Part::Form(field, value) => {
                has_meaning(self.base, field, self.form) && value_of(field, self.form) == value
            }
            Part::ClusterBits(bits) => 1 << block_bits(self.base, bits) == self.block,
            Part::Size(0) => {
                self.size <= 512 && (self.size == 0 || self.base == Base::of(ImageFormat::Vhdx))
            }
            Part::Size(1) => blocks == 0 && rest > 512,
            Part::Size(2) => blocks > 0 && rest > 0,
            Part::Size(3) => blocks > 0 && rest == 0,
            Part::Size(4) => blocks >= 200,
            Part::Size(_) => self.size >= 1 << 32,
            Part::Operation(index) => {
                let (_, name, lines) = OPERATIONS[index];
                let wanted = lines::operations(lines);
                // The kind of zeros is an operand, and so is that of an extent.
                let is_kind = |one: &Operation| match (one, wanted.last()) {
                    (Operation::Zero { keep, .. }, Some(Operation::Zero { keep: like, .. })) => {
                        keep == like
                    }
                    (
                        Operation::Beyond { kind, .. },
                        Some(Operation::Beyond { kind: like, .. }),
                    ) => kind == like,
                    (
                        Operation::Extent { kind, .. },
                        Some(Operation::Extent { kind: like, .. }),
                    ) => kind == like,
                    (
                        Operation::WriteAs { look, .. },
                        Some(Operation::WriteAs { look: like, .. }),
                    ) => look == like,
                    _ => true,
                };
                if name == "write_as" && !self.has_look(OPERATIONS[index].0) {
                    return false;
                }
                self.effects.iter().any(|(one, effect)| {
                    one.name() == name && *effect == Effect::Changed && is_kind(one)
                })
            }
        }
    }
}

/// Returns a program with an image of a base, for which the operations and the size, and the parts among `wanted`, are
/// chosen. `form` has the other fields of the form.
fn made(base: Base, wanted: &[Part], form: u16, more: &[Operation], rng_seed: u64) -> Program {
    let find = |is_it: fn(&Part) -> Option<u8>| wanted.iter().find_map(is_it);
    let bits = find(|part| match part {
        Part::ClusterBits(bits) => Some(*bits),
        _ => None,
    });
    let size = find(|part| match part {
        Part::Size(index) => Some(*index as u8),
        _ => None,
    });
    let bits = bits.unwrap_or(12);
    let block = block_bits(base, bits);
    let size = match size {
        Some(0) => "0<<0+0".to_string(),
        Some(1) => format!("3<<{}+0", block - 2),
        Some(2) => format!("11<<{}+0", block - 1),
        Some(4) => format!("200<<{block}+0"),
        Some(5) => "5000<<20+0".to_string(),
        _ => format!("7<<{block}+0"),
    };
    let mut form = form;
    for part in wanted {
        if let Part::Form(field, value) = part {
            form = with(*field, form, *value);
        }
    }
    let image = format!(
        "image version=3 cluster_bits={bits} refcount_order=4 features=none size={size} \
         rng_seed={rng_seed} blocks=append table=append tolerance=0"
    );
    let mut program = assemble(&image).unwrap_or_else(|error| panic!("{error}\n{image}"));
    (program.prologue.base, program.prologue.form) = (base, ImageForm(form));
    program.operations.extend(more);
    for part in wanted {
        if let Part::Operation(index) = part {
            program.operations.extend(lines::operations(OPERATIONS[*index].2));
        }
    }
    // The image with a parent is the one that has the wanted parts.
    let prologue = program.prologue;
    for operation in &mut program.operations {
        if let Operation::OverlayInFormat { cluster_bits, form, .. } = operation {
            (*cluster_bits, *form) = (prologue.cluster_bits, prologue.form);
        }
    }
    program
}

/// An image that has some parts: its form, and its size and the size of its blocks.
struct Example {
    form: u16,
    others: [Part; 2],
}

/// Programs, and the number of programs that have each pair of parts.
pub struct Programs {
    pub all: Vec<Part>,
    pub had: Vec<Vec<u32>>,
    pub programs: Vec<Program>,
    base: Base,
    images: Images,
}

impl Programs {
    /// Returns `count` random programs, and then programs for every part that is too rare and for every pair that is
    /// allowed and missing.
    pub fn chosen(base: Base, count: u64) -> Self {
        let all = parts(base);
        let had = vec![vec![0; all.len()]; all.len()];
        let images = Images::default();
        let mut chosen = Self { all, had, programs: Vec::new(), base, images };
        for rng_seed in 0..count {
            chosen.keep(program(base, rng_seed), &[]);
        }
        for one in 0..chosen.all.len() {
            for other in 0..=one {
                let least = if one == other { ENOUGH } else { 1 };
                let wanted = [chosen.all[one], chosen.all[other]];
                if chosen.had[one][other] >= least {
                    continue;
                }
                let wanted = if one == other { &wanted[..1] } else { &wanted };
                let Some(example) = chosen.allowed(wanted) else { continue };
                chosen.add(wanted, &example, (one, other), least);
            }
        }
        chosen
    }

    /// Adds programs with the wanted parts, which an example has, with random other parts and a few random operations.
    fn add(
        &mut self,
        wanted: &[Part],
        example: &Example,
        (one, other): (usize, usize),
        least: u32,
    ) {
        let mut entropy = Entropy::new((one * self.all.len() + other) as u64);
        for attempt in 0..TRIES {
            if self.had[one][other] >= least {
                return;
            }
            // The first attempts have other parts than the example.
            let is_example = attempt > 8;
            let count = if is_example { 0 } else { 3 };
            let mut more = generate_any(entropy.next_u64(), count).operations;
            more.retain(|one| one.class() != Class::Overlays);
            let random = [
                Part::ClusterBits(9 + entropy.below(9) as u8),
                Part::Size(entropy.below(SIZES.len() as u64) as usize),
            ];
            let mut parts = wanted.to_vec();
            // The first part of a kind counts.
            parts.extend(if is_example { example.others } else { random });
            let program = made(self.base, &parts, example.form, &more, entropy.below(1 << 16));
            self.keep(program, wanted);
        }
    }

    /// Keeps a program if it has the wanted parts and its file is not too long.
    fn keep(&mut self, program: Program, wanted: &[Part]) {
        let mut run = Run::of(program, &mut self.images);
        if run.file_bytes > MAX_FILE_BYTES {
            let is_gap = |one: &Operation| {
                matches!(one, Operation::Reserve { .. } | Operation::ReserveFar { .. })
            };
            run.program.operations.retain(|one| !is_gap(one));
            run = Run::of(run.program, &mut self.images);
        }
        if run.file_bytes > MAX_FILE_BYTES || !wanted.iter().all(|part| run.has(part)) {
            return;
        }
        let there: Vec<usize> = (0..self.all.len()).filter(|at| run.has(&self.all[*at])).collect();
        for one in &there {
            there.iter().for_each(|other| self.had[*one][*other] += 1);
        }
        self.programs.push(run.program);
    }

    /// Tries parts together in each kind of image that a format has. Returns an image that has them; `None` if the
    /// format does not allow them together.
    fn allowed(&mut self, wanted: &[Part]) -> Option<Example> {
        // The fields on which the meaning of others depends.
        let kinds: &[Field] = match self.base {
            Base::Other(ImageFormat::Vpc, _) => &VPC_FIELDS[1..2],
            Base::Other(ImageFormat::Vhdx, _) => &[],
            Base::Other(ImageFormat::Vdi, _) => &VDI_FIELDS[..1],
            _ => &[VMDK_FIELDS[1], VMDK_FIELDS[5]],
        };
        let mut forms = vec![0];
        for field in kinds {
            let values = |form: &u16| {
                let form = *form;
                (0..1 << field.2).map(move |value| with(*field, form, value))
            };
            forms = forms.iter().flat_map(values).collect();
        }
        let has_size = wanted.iter().any(|part| matches!(part, Part::Size(_)));
        let has_bits = wanted.iter().any(|part| matches!(part, Part::ClusterBits(_)));
        let sizes = if has_size { 3..4 } else { 2..6 };
        // Disks of 4 GiB have long blocks, because their number is limited.
        let bits = if has_bits { 12..13 } else { 12..20 };
        for form in forms {
            for (size, bits) in
                sizes.clone().flat_map(|size| bits.clone().map(move |it| (size, it)))
            {
                let others = [Part::Size(size), Part::ClusterBits(bits)];
                let parts = [wanted, &others].concat();
                let run = Run::of(made(self.base, &parts, form, &[], 1), &mut self.images);
                if wanted.iter().all(|part| run.has(part)) {
                    return Some(Example { form, others });
                }
            }
        }
        None
    }

    /// Returns the pairs that the format allows and no program has, and the number of pairs that programs have.
    pub fn missing(&mut self) -> (Vec<String>, usize) {
        let (mut missing, mut count) = (Vec::new(), 0);
        for one in 0..self.all.len() {
            for other in 0..one {
                let pair = [self.all[one], self.all[other]];
                if self.had[one][other] > 0 {
                    count += 1;
                } else if self.allowed(&pair).is_some() {
                    missing.push(format!("{} with {}", pair[0], pair[1]));
                }
            }
        }
        (missing, count)
    }
}
