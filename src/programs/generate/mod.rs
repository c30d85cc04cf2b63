//! Generates programs from a random seed, for tests, benchmarks and any other use that needs programs without a fuzzer.
//! Unlike random bytes, their operations mostly hit clusters that earlier operations wrote. The functions that generate
//! one operation take their `Choices` from a stream of random numbers or from bytes.
//!
//! [`generate_any`] has all operations that build an image and ask questions. [`generate_writes`] has requests, too.
//! [`generate`] is frozen, because benchmarks compare versions with its programs: it has the 13 oldest operations, and
//! only images in one file.

mod arbitrary;
pub(crate) mod choices;
pub(crate) mod groups;

use std::ops::Range;

use crate::base::file_parts::MAX_EXTENT_FILES;
use crate::disk::image_format::ImageFormat;
use crate::formats::qcow2::geometry::Geometry;
use crate::images::content::entropy::Entropy;
use crate::images::format::list::drawer;
use crate::images::qcow2::Sizes;

use super::operand::{
    Anchor, At, Base, BytesKind, Gap, ImageFeatures, ImageForm, Inside, Length, Operand,
    OperandKind, Size,
};
use super::operation::{Class, OPERATION_BYTES, Operation};
use super::program::Program;
use super::program::framing::data_of;
use super::prologue::{PROLOGUE_BYTES, Prologue};
use choices::Choices;

/// The properties of a program of [`generate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerateSettings {
    /// The number of operations.
    pub operations: usize,
    /// The program may write compressed clusters.
    pub compressed: bool,
}

/// Generates the program of `rng_seed`. The seed also selects the cluster size and the refcount order: any 91
/// consecutive seeds contain every pair of them.
pub fn generate(rng_seed: u64, wanted: GenerateSettings) -> Program {
    let mut entropy = Entropy::new(rng_seed);
    let mut bytes = vec![0; PROLOGUE_BYTES];
    bytes[1..].fill_with(|| entropy.next_u64() as u8);
    // One layer, without a data file: the benchmark's set of programs was frozen before chains and data files existed.
    bytes[15..].fill(0);
    bytes[2] = (rng_seed % 13) as u8;
    bytes[3] = (rng_seed % 7) as u8;
    // Version 2 has neither zero clusters nor subclusters: one program in eight is enough.
    bytes[1] = u8::from(entropy.one_in(8));
    if entropy.one_in(2) {
        // The plan drops extended L2 if the cluster size does not allow it.
        ImageFeatures::EXTENDED_L2.encode(&mut &mut bytes[4..5]);
    }
    let mut program = Program::decode(&bytes);
    let extended_l2 = program.prologue.plan().geometry.extended_l2;
    while program.operations.len() < wanted.operations {
        match operation(&mut entropy) {
            Some(Operation::Compress { .. }) if !wanted.compressed => {}
            Some(Operation::Subclusters { .. }) if !extended_l2 => {}
            Some(operation) => program.operations.push(operation),
            None => {}
        }
    }
    program
}

/// Generates a program of `operations` operations, with chains, data files, and every operation that a valid image can
/// have. The seed also selects the cluster size and the refcount order: any 91 consecutive seeds contain every pair of
/// them.
pub fn generate_any(rng_seed: u64, operations: usize) -> Program {
    let mut entropy = Entropy::new(rng_seed);
    let shape = [(rng_seed % 13) as u8, (rng_seed % 7) as u8];
    let prologue = any_prologue(&mut entropy, shape, 4, |prologue| {
        // Large disks have a stream of their own, too.
        let mut large = Entropy::new(rng_seed ^ LARGE_STREAM);
        if large.one_in(LARGE_ONE_IN) {
            enlarge(prologue, &mut large);
        }
    });
    let mut program = Program { prologue, ..Program::default() };
    while program.operations.len() < operations {
        program.operations.extend(valid_operation(&mut entropy));
    }
    if program.prologue.base.format().facts().has_extents {
        vary_extents(&mut program, &mut entropy);
        program.operations.truncate(operations);
    }
    if operations > 0 && entropy.one_in(FAR_ONE_IN) {
        let at = entropy.below(operations as u64) as usize;
        let made = far_gap(&mut entropy);
        program.operations.splice(at..=at, made);
    }
    // Data are no operations, and have a stream of their own.
    let mut entropy = Entropy::new(!entropy.state());
    let made = std::mem::take(&mut program.operations).into_iter();
    program.operations = made.flat_map(|made| with_data(made, &mut entropy)).collect();
    program
}

/// The share of programs with a large disk in another format than qcow2.
const LARGE_ONE_IN: u64 = 24;
/// Selects the stream of entropy of large disks.
const LARGE_STREAM: u64 = 0x6c61_7267_6500_0000;

/// Makes the lowest image one of a large disk in another format than qcow2, with the same clusters.
pub(crate) fn enlarge(prologue: &mut Prologue, entropy: &mut Entropy) {
    let has_room = |format: &ImageFormat| {
        prologue.cluster_bits.get() >= drawer(*format).large_disk_cluster_bits()
    };
    let possible = Base::other_formats().filter(has_room).count();
    let chosen = possible - 1 - entropy.below(possible as u64) as usize;
    let format = Base::other_formats().filter(has_room).nth(chosen);
    prologue.base = Base::large(format.unwrap_or_default());
    prologue.size = large_size(entropy);
}

/// Returns a size of more than 4 GiB. Most are less than 20 GiB, because readers read some tables whole.
fn large_size(entropy: &mut Entropy) -> Size {
    /// Quarters of a GiB.
    const SHIFT: u8 = 28;
    let more = if entropy.one_in(16) { 1 << (6 + entropy.below(10)) } else { 64 };
    let units = (17 + entropy.below(more)).min(u16::MAX.into()) as u16;
    let tails = [0, 0, 512, -512, 1, -1, 511, entropy.next_u64() as i16];
    let tail = tails[entropy.below(tails.len() as u64) as usize];
    Size::new(units, SHIFT, tail).unwrap_or_default()
}

/// Generates a prologue. `shape` encodes the cluster size and the refcount order. One image in `others_one_in` may have
/// a data file or another format. `change` may give it another base and another size.
pub(super) fn any_prologue(
    choices: &mut impl Choices,
    shape: [u8; 2],
    others_one_in: u64,
    change: impl FnOnce(&mut Prologue),
) -> Prologue {
    let mut bytes = [0; PROLOGUE_BYTES - 1];
    bytes.fill_with(|| choices.byte());
    bytes[0] = u8::from(choices.one_in(8));
    bytes[1..3].copy_from_slice(&shape);
    let mut prologue = Prologue::decode(&bytes);
    if !choices.one_in(others_one_in) {
        (prologue.data_in, prologue.base) = Default::default();
    }
    change(&mut prologue);
    if prologue.base.is_qcow2() {
        prologue.form = ImageForm::default();
    }
    prologue
}

/// Generates an operation that builds a valid image or asks a question: half of the time one as in [`operation`], else
/// one with any opcode but that of a far gap. Returns `None` if the operation would be an attack, or if the operands
/// have no meaning.
pub(super) fn valid_operation(choices: &mut impl Choices) -> Option<Operation> {
    let usual = choices.one_in(2);
    let made = match usual {
        true => operation(choices),
        false => {
            let nth = choices.below(opcodes().count() as u64 - 1) as usize;
            operation_of(nth + usize::from(nth >= far_index()), choices)
        }
    };
    made.filter(|made| made.class() != Class::Attacks)
}

/// Generates a far gap.
pub(super) fn far_gap(choices: &mut impl Choices) -> Option<Operation> {
    operation_of(far_index(), choices)
}

/// Generates a size near a multiple of the bytes that a cluster, an L2 table or a cluster of the L1 table covers.
pub(crate) fn near_size(geometry: &Geometry, choices: &mut impl Choices) -> Size {
    let shift = match choices.below(4) {
        0 => geometry.cluster_size.bits(),
        1 => geometry.l2_span_bytes().ilog2(),
        2 => geometry.l2_span_bytes().ilog2() + geometry.cluster_size.bits() - 3,
        _ => choices.below(48) as u32,
    };
    let units = [1, 2, 3, 1 + choices.below(300) as u16][choices.below(4) as usize];
    let tails = [0, 0, 512, -512, 1, -1, 511, choices.word().cast_signed()];
    let tail = tails[choices.below(8) as usize];
    // The shift is in the range of the operand, so the default is never used.
    Size::new(units, shift.min(47) as u8, tail).unwrap_or_default()
}

/// The share of programs with requests that build nothing: the engine creates the image.
const CREATED_ONE_IN: u64 = 12;

/// Generates a program for the target that writes: `operations` operations that build an image, or none, and at most
/// half as many requests to the engine.
pub fn generate_writes(rng_seed: u64, operations: usize) -> Program {
    let mut program = generate_any(rng_seed, operations);
    let mut entropy = Entropy::new(rng_seed);
    let requests = entropy.below(operations as u64 / 2 + 1);
    if entropy.one_in(CREATED_ONE_IN) {
        build_nothing(&mut program);
    }
    program.operations.push(writing_begins());
    for _ in 0..requests {
        let made = request(&mut entropy, &program.operations);
        program.operations.extend(made);
    }
    program
}

/// Has the engine create the image: the program builds nothing, and its `rng_seed` is odd.
pub(crate) fn build_nothing(program: &mut Program) {
    program.operations.clear();
    (program.prologue.base, program.prologue.rng_seed) = (Base::Qcow2, 1);
}

/// Returns a request that changes nothing: with it, a program begins to write.
pub(crate) fn writing_begins() -> Operation {
    Operation::WriteAt { at: At::default(), inside: Inside::default(), length: Gap::default() }
}

/// Gives a program the operations that only images with extents have. In half of the programs, all overlays have the
/// format of the base. A third of the images have files beside them.
pub fn vary_extents(program: &mut Program, entropy: &mut Entropy) {
    let keep_format = entropy.one_in(2);
    let mut varied = Vec::with_capacity(program.operations.len());
    add_extents(&mut varied, entropy);
    for operation in program.operations.drain(..) {
        match operation {
            Operation::Overlay { cluster_bits, size, .. } if keep_format => {
                let form = ImageForm(entropy.next_u64() as u16);
                varied.push(Operation::OverlayInFormat { cluster_bits, form, size });
                add_extents(&mut varied, entropy);
            }
            operation => varied.push(operation),
        }
    }
    program.operations = varied;
}

/// Adds operations that split the image that begins here into several files; in two of three cases, adds none.
pub(super) fn add_extents(operations: &mut Vec<Operation>, choices: &mut impl Choices) {
    if !choices.one_in(3) {
        return;
    }
    for _ in 0..1 + choices.below(MAX_EXTENT_FILES as u64) {
        let mut bytes = [0; 4];
        bytes.fill_with(|| choices.below(16) as u8);
        // Few clusters: most disks have more.
        bytes[2] %= 4;
        let mut bytes = bytes.as_slice();
        operations.push(Operation::Extent {
            kind: Operand::decode(&mut bytes),
            length: Operand::decode(&mut bytes),
            lead: Operand::decode(&mut bytes),
        });
    }
}

/// The name of the operation that leaves a far gap. Only 1 in [`FAR_ONE_IN`] programs has it: tools that read every
/// count of the file take long, and file systems cannot hold most of these files.
const FAR: &str = "reserve_far";
pub(super) const FAR_ONE_IN: u64 = 16;

/// Returns the index of the opcode of [`FAR`] in [`opcodes`].
fn far_index() -> usize {
    opcodes().position(|(_, name)| *name == FAR).unwrap_or_default()
}

/// Returns every opcode with its name, except those of requests to an engine that writes.
fn opcodes() -> impl Iterator<Item = &'static (u16, &'static str)> {
    Operation::OPCODES.iter().filter(|(code, _)| !REQUESTS.contains(code))
}

/// The opcodes of `write_at`, `zero_at`, `sync`, `write_data_at`, `fail_file`, `crash`, `device`, `in_flight` and
/// `read_at`, which mean something only in the target that writes.
const REQUESTS: [u16; 9] = [34, 35, 36, 258, 259, 260, 261, 262, 263];

/// The opcodes from which [`request`] draws: `write_at`, `write_data_at`, `write_data`, `zero_at`, `sync`, `write`,
/// `zero`, `discard`, `resize`, `checkpoint`, `snapshot`, `apply_snapshot`, `delete_snapshot`, `bitmap`, `fill_bitmap`,
/// `delete_bitmap`, `fail_file`, `crash`, `device`, `in_flight`, `read_at`.
const WRITING: [u16; 38] = [
    34, 34, 34, 34, 258, 258, 257, 35, 35, 36, 36, 36, 36, 0, 2, 3, 3, 9, 9, 13, 7, 7, 19, 8, 16,
    16, 17, 18, 259, 259, 260, 260, 261, 261, 262, 262, 262, 263,
];

/// Generates an operation of the writing. Half of the time, its operands are below 16; half of the time, it has the
/// position of one of the operations `earlier`.
pub(crate) fn request(entropy: &mut Entropy, earlier: &[Operation]) -> Option<Operation> {
    let bound = if entropy.one_in(2) { 16 } else { 256 };
    let mut record = [0; OPERATION_BYTES];
    record.fill_with(|| entropy.below(bound) as u8);
    let code = WRITING[entropy.below(WRITING.len() as u64) as usize];
    let mut record = Operation::with_opcode(code, record);
    let made = Operation::decode(&record)?;
    let Some(position) = position_of(&made) else { return Some(made) };
    let nth = entropy.below(earlier.len().max(1) as u64) as usize;
    let other = earlier.get(nth).and_then(|one| Some((one, position_of(one)?)));
    match other {
        Some((one, place)) if entropy.one_in(2) => {
            record[position].copy_from_slice(&one.encode()[place]);
        }
        _ => near(&mut record[position], entropy),
    }
    Operation::decode(&record)
}

/// Moves 1 in 4 operations that have a position back over the clusters of the operation before it. The new position is
/// relative. So its bytes do not depend on earlier operations, unlike those of a copied position.
pub(super) fn moved_back(made: Operation, choices: &mut impl Choices) -> Operation {
    let Some(position) = position_of(&made) else { return made };
    if !choices.one_in(4) {
        return made;
    }
    let back = 1 + choices.below(16) as u16;
    let mut record = made.encode();
    At { anchor: Anchor::Last, steps: back.wrapping_neg() }.encode(&mut &mut record[position]);
    Operation::decode(&record).unwrap_or(made)
}

/// Returns the bytes of the first operand in the record, if it is a position.
fn position_of(operation: &Operation) -> Option<Range<usize>> {
    let first = operation.places().first()?;
    (first.kind == OperandKind::Position).then(|| first.bytes())
}

/// Generates one operation with a random opcode. Half of the time, its operands are below 16. Returns `None` if the
/// operands have no meaning.
pub(crate) fn any_operation(choices: &mut (impl Choices + ?Sized)) -> Option<Operation> {
    operation_of(choices.below(opcodes().count() as u64) as usize, choices)
}

/// Generates one operation with the opcode at index `nth` of the table.
fn operation_of(nth: usize, choices: &mut (impl Choices + ?Sized)) -> Option<Operation> {
    let (code, _) = *opcodes().nth(nth)?;
    let bound = if choices.one_in(2) { 16 } else { 256 };
    let mut record = [0; OPERATION_BYTES];
    record.fill_with(|| choices.below(bound) as u8);
    Operation::decode(&Operation::with_opcode(code, record))
}

/// Returns an operation, and random data behind it if it takes some. Its length becomes another one, mostly short.
pub(crate) fn with_data<C: Choices>(
    operation: Operation,
    choices: &mut C,
) -> impl Iterator<Item = Operation> + use<C> {
    let mut bytes = Vec::new();
    let operation = match operation {
        Operation::Bytes { kind, .. } => {
            let most = [4, 16, 64, 512][choices.below(4) as usize];
            let length = match kind {
                BytesKind::Inside => 2,
                _ => choices.below(most) as usize,
            };
            bytes.resize(length, 0);
            let random = choices.one_in(3);
            bytes.fill_with(|| match kind {
                BytesKind::Payload | BytesKind::Extension | BytesKind::Inside | BytesKind::Data => {
                    choices.byte()
                }
                BytesKind::Name | BytesKind::Id if random => choices.byte(),
                // Few letters, so that strings are equal now and then.
                BytesKind::Name | BytesKind::Id => b'a' + choices.below(3) as u8,
            });
            if kind == BytesKind::Payload && choices.one_in(2) {
                // The header of a zstd block of at most 31 bytes. Deflate has the type of a block at the same place.
                let header = [(choices.below(96) << 1) as u8, 0, 0];
                bytes.iter_mut().zip(header).for_each(|(byte, header)| *byte = header);
            }
            Operation::Bytes { kind, length: Length::at_most(length) }
        }
        operation => operation,
    };
    let data: Vec<_> = data_of(&bytes).collect();
    std::iter::once(operation).chain(data)
}

/// Generates one operation as random bytes would, but near the operations before it. Returns `None` if the opcode has
/// no meaning.
pub fn operation(choices: &mut impl Choices) -> Option<Operation> {
    let mut record = [0; OPERATION_BYTES];
    record.fill_with(|| choices.byte());
    record[0] = if record[0] < 40 { 0 } else { record[0] };
    let has = |record: &[u8; OPERATION_BYTES], kind| {
        let places = Operation::decode(record)?.places();
        places.iter().find(|place| place.kind == kind)
    };
    if has(&record, OperandKind::Size).is_some() {
        // A size keeps its random magnitude: with small operands, most disks would be empty from here on.
        return Operation::decode(&record);
    }
    // Opcodes of the first table have one byte, so a position begins at byte 1.
    near(&mut record[1..4], choices);
    if let Some(clusters) = has(&record, OperandKind::Count) {
        // Half of the operations touch one cluster, few touch many.
        let byte = &mut record[clusters.start];
        *byte = [0, 0, 0, 0, 1, 1, 2, *byte][choices.below(8) as usize];
    }
    Operation::decode(&record)
}

/// Changes an encoded position to one where neighbours are: near the start, near the last operation, or around the
/// edges of tables.
fn near(position: &mut [u8], choices: &mut impl Choices) {
    let anchor = [0, 0, 1, 2, 2, 2, 3, 3, 4][choices.below(9) as usize];
    let reach = [8, 32, 64][choices.below(3) as usize];
    let near = [anchor, choices.below(reach) as u8, 0];
    position.iter_mut().zip(near).for_each(|(to, from)| *to = from);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Tests, benchmarks and campaigns depend on the programs of a seed.
    #[test]
    fn the_programs_of_a_seed_stay_the_same() {
        let sum = |one: &dyn Fn(u64) -> Program| {
            let bytes: Vec<u8> = (0..400).flat_map(|rng_seed| one(rng_seed).encode()).collect();
            crc32fast::hash(&bytes)
        };
        let frozen = GenerateSettings { operations: 24, compressed: true };
        assert_eq!(sum(&|rng_seed| generate(rng_seed, frozen)), 0x8405_e997);
        assert_eq!(sum(&|rng_seed| generate_any(rng_seed, 24)), 0x7714_ed88);
        assert_eq!(sum(&|rng_seed| generate_writes(rng_seed, 24)), 0x7feb_9e43);
    }

    #[test]
    fn every_operation_of_valid_images_is_generated() {
        let programs = (0..182).map(|rng_seed| generate_any(rng_seed, 24));
        let mut made = BTreeSet::new();
        let mut shapes = BTreeSet::new();
        for program in programs {
            let prologue = program.prologue;
            let (bits, order) = (prologue.cluster_bits.get(), prologue.refcount_order.get());
            shapes.insert((bits, order));
            let is_data = |one: &&Operation| matches!(one, Operation::Data(_));
            let operations = program.operations.iter().filter(|one| !is_data(one));
            made.extend(operations.map(Operation::name));
        }
        let is_valid = |(code, _): &&(u16, &str)| {
            let class = Operation::decode(&Operation::with_opcode(*code, [0; OPERATION_BYTES]))
                .unwrap()
                .class();
            !matches!(class, Class::Attacks | Class::Requests(_))
        };
        let valid: BTreeSet<_> =
            Operation::OPCODES.iter().filter(is_valid).map(|(_, name)| *name).collect();
        assert_eq!(made, valid);
        assert_eq!(shapes.len(), 91);
    }
}
