//! [`Program`] as an [`Arbitrary`] type: bytes that any fuzzer or test framework chose become a structured program.
//!
//! The [generator](super) of programs takes its choices from the bytes. The first 32 bytes choose the options
//! of the image. Each further 8 bytes choose one operation, so a changed byte mostly changes one operation. The virtual
//! machine runs each operation at once, and an operation without an effect is drawn again from the same bytes. So a
//! program deletes only snapshots that exist, and changes subclusters only in images that have them.
//!
//! Unlike [`Program::decode`], this is no encoding: a later version may make another program of the same bytes. Keep
//! [`Program::encode`] of a program that found something.

use arbitrary::{Arbitrary, Unstructured};

use crate::base::limits::MAX_OPERATIONS;
use crate::images::content::entropy::Entropy;
use crate::images::limits::Limits;
use crate::programs::generate;
use crate::programs::interpreter::{Effect, Vm};
use crate::programs::operand::Base;
use crate::programs::operation::{OPERATION_BYTES, Operation};
use crate::programs::program::Program;

use super::choices::{ByteChoices, Choices};

/// The number of bytes that choose the options of the image. Missing ones are zeros.
const IMAGE_BYTES: usize = 32;
/// The number of bytes that choose an operation. An incomplete record ends the program.
const RECORD_BYTES: usize = 8;
/// The number of operations that a record may propose until one has an effect.
const TRIES_OF_A_RECORD: u32 = 6;
/// The largest number of operations that a record adds: `bytes`, and its data.
const MOST_OF_A_RECORD: usize = 1 + 512 / OPERATION_BYTES;

impl<'a> Arbitrary<'a> for Program {
    /// Takes the image's options, and as many operations as `u` chooses. The rest of the bytes stays in `u`.
    fn arbitrary(u: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let records = u.arbitrary_len::<[u8; RECORD_BYTES]>()?;
        let wanted = IMAGE_BYTES + records * RECORD_BYTES;
        Ok(drawn(u.bytes(wanted.min(u.len()))?))
    }

    fn arbitrary_take_rest(u: Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(drawn(u.take_rest()))
    }

    /// The bytes of an image without operations. Fewer bytes make a program, too.
    fn size_hint(_depth: usize) -> (usize, Option<usize>) {
        (IMAGE_BYTES, None)
    }
}

/// Returns the program that `bytes` choose.
fn drawn(bytes: &[u8]) -> Program {
    let mut image = [0; IMAGE_BYTES];
    image.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let mut choices = chosen_by(&image);
    let shape = [choices.below(13) as u8, choices.below(7) as u8];
    // Any image may have a data file or another format, as the images of decoded bytes have.
    let mut prologue = generate::any_prologue(&mut choices, shape, 1, |_| {});
    prologue.size = generate::near_size(&prologue.plan().geometry, &mut choices);
    let far_at = choices.one_in(generate::FAR_ONE_IN).then(|| choices.below(32));
    let mut drawing = Drawing {
        program: Program { prologue, ..Program::default() },
        vm: Vm::new(),
        rest: bytes.get(IMAGE_BYTES..).unwrap_or_default(),
    };
    drawing.vm.begin(&prologue, Limits::WALKED);
    let format = prologue.base.format();
    let has_extents = format.facts().has_extents && prologue.base == Base::of(format);
    let mut records = 0;
    while drawing.program.operations.len() + MOST_OF_A_RECORD <= MAX_OPERATIONS
        && let Some((record, rest)) = drawing.rest.split_first_chunk::<RECORD_BYTES>()
    {
        drawing.rest = rest;
        let mut choices = chosen_by(record);
        match records {
            0 if has_extents => drawing.add_extents(&mut choices),
            at if Some(at) == far_at => drawing.add(generate::far_gap(&mut choices)),
            _ => drawing.add_effective(&mut choices),
        }
        records += 1;
    }
    drawing.program
}

/// Returns the choices of a record. After its last byte, a stream of random numbers makes the choices, seeded with the
/// checksum of the record.
fn chosen_by(record: &[u8]) -> ByteChoices<'_> {
    ByteChoices::new(record, Entropy::new(u64::from(crc32fast::hash(record))))
}

/// A program whose first operations have been drawn.
struct Drawing<'b> {
    program: Program,
    /// The machine that has run these operations.
    vm: Vm,
    /// The bytes behind the record of the last operation.
    rest: &'b [u8],
}

impl Drawing<'_> {
    /// Adds an operation that has an effect, if one of the first tries has.
    fn add_effective(&mut self, choices: &mut ByteChoices) {
        for _ in 0..TRIES_OF_A_RECORD {
            let Some(made) = generate::valid_operation(choices) else { continue };
            if let Operation::Bytes { .. } = made {
                return self.add_with_data(made);
            }
            let made = generate::moved_back(made, choices);
            if self.step(made) != Effect::None {
                return self.program.operations.push(made);
            }
        }
    }

    /// Adds an operation `bytes`. Its data are chosen by the next records.
    fn add_with_data(&mut self, bytes: Operation) {
        let mut choices = ByteChoices::new(self.rest, Entropy::new(0));
        self.add(generate::with_data(bytes, &mut choices));
        let used = self.rest.len() - choices.unused().len();
        self.rest = self.rest.get(used.next_multiple_of(RECORD_BYTES)..).unwrap_or_default();
    }

    /// Adds the extents of an image, or none.
    fn add_extents(&mut self, choices: &mut ByteChoices) {
        let mut extents = Vec::new();
        generate::add_extents(&mut extents, choices);
        self.add(extents);
    }

    fn add(&mut self, operations: impl IntoIterator<Item = Operation>) {
        for operation in operations {
            self.step(operation);
            self.program.operations.push(operation);
        }
    }

    fn step(&mut self, operation: Operation) -> Effect {
        let effect = self.vm.step(operation);
        if effect == Effect::Checkpoint {
            self.vm.answered();
        }
        effect
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::programs::operation::Class;

    use super::*;

    fn random_bytes(entropy: &mut Entropy, length: u64) -> Vec<u8> {
        (0..length).map(|_| entropy.next_u64() as u8).collect()
    }

    #[test]
    fn any_bytes_are_a_canonical_program() {
        let mut entropy = Entropy::new(1);
        for length in 0..600 {
            let bytes = random_bytes(&mut entropy, length);
            let program = Program::arbitrary_take_rest(Unstructured::new(&bytes)).unwrap();
            assert_eq!(Program::decode(&program.encode()), program);
            let some = Program::arbitrary(&mut Unstructured::new(&bytes)).unwrap();
            assert!(some.operations.len() <= program.operations.len() + MOST_OF_A_RECORD);
        }
        let (lower, upper) = Program::size_hint(0);
        let short = drawn(&vec![0; lower + RECORD_BYTES - 1]);
        assert_eq!((short.operations.len(), upper), (0, None));
        assert_eq!(drawn(&[]), short, "missing bytes are zeros");
        assert_eq!(drawn(&vec![0; lower + RECORD_BYTES]).operations.len(), 1);
        assert!(drawn(&vec![0; 1 << 18]).operations.len() <= MAX_OPERATIONS);
    }

    #[test]
    fn a_program_leaves_bytes_for_the_values_behind_it() {
        let bytes = random_bytes(&mut Entropy::new(2), 4096);
        let mut left = BTreeSet::new();
        for length in 2048..4096 {
            let mut u = Unstructured::new(&bytes[..length]);
            Program::arbitrary(&mut u).unwrap();
            left.insert(u.len() / 512);
        }
        assert!(left.len() >= 6, "{left:?}");
    }

    #[test]
    fn a_changed_byte_mostly_changes_one_operation() {
        let mut entropy = Entropy::new(3);
        let (mut changes, mut unchanged, mut local) = (0u32, 0u32, 0u32);
        for _ in 0..100 {
            let mut bytes = random_bytes(&mut entropy, 512);
            let before = drawn(&bytes);
            for _ in 0..20 {
                let at = IMAGE_BYTES + entropy.below(512 - IMAGE_BYTES as u64) as usize;
                let bit = 1 << entropy.below(8);
                bytes[at] ^= bit;
                let after = drawn(&bytes);
                bytes[at] ^= bit;
                let differing = differing(&before.operations, &after.operations);
                changes += 1;
                unchanged += u32::from(differing == 0);
                local += u32::from(differing <= 1);
            }
        }
        assert!(local * 100 >= changes * 85, "{local} of {changes}, {unchanged} without a change");
        assert!(unchanged * 100 <= changes * 20, "{unchanged} of {changes}");
    }

    /// Returns the length of the piece outside of which two programs are the same.
    fn differing(a: &[Operation], b: &[Operation]) -> usize {
        let head = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let tails = a[head..].iter().rev().zip(b[head..].iter().rev());
        a.len().max(b.len()) - head - tails.take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn each_operation_of_a_valid_image_is_drawn() {
        let mut entropy = Entropy::new(4);
        let programs = (0..400).map(|_| drawn(&random_bytes(&mut entropy, 1024)));
        let operations = programs.flat_map(|program| program.operations);
        let made: BTreeSet<_> = operations.map(|one| one.name()).collect();
        let is_valid = |(code, _): &&(u16, &str)| {
            let record = Operation::with_opcode(*code, [0; OPERATION_BYTES]);
            let class = Operation::decode(&record).unwrap().class();
            !matches!(class, Class::Attacks | Class::Requests(_))
        };
        let valid = Operation::OPCODES.iter().filter(is_valid).map(|(_, name)| *name);
        assert_eq!(made, valid.chain(["data"]).collect());
    }
}
