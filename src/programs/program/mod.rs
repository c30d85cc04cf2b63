//! A program: the decoded form of libFuzzer's input.

pub mod framing;

use std::fmt;

use arbitrary::{Arbitrary, Unstructured};

use super::operation::{OPERATION_BYTES, Operation};
use super::prologue::{PROLOGUE_BYTES, Prologue};
use framing::{Decoder, framed, write_lines};

/// The first byte that marks an encoding of a later version. Such an input decodes to a program that does nothing. All
/// bytes below mean this version.
const UNKNOWN_ENCODINGS: u8 = 240;

/// A decoded program. Its `Debug` output is its text, which assembles to the same program.
///
/// Test frameworks make programs by [`Arbitrary`]: `libfuzzer_sys::fuzz_target!(|program: Program| …)`, or
/// `bolero::check!().with_arbitrary::<Program>()`. Without a framework, use random bytes from a fixed seed:
///
/// ```
/// use arbitrary::{Arbitrary, Unstructured};
/// use qcowfuzz::harness::{Checks, Harness, Walker};
/// use qcowfuzz::programs::Program;
///
/// let mut harness = Harness::new(Walker::default());
/// let mut state = 1u64;
/// let (mut operations, mut effective) = (0, 0);
/// for _ in 0..50 {
///     let bytes: Vec<u8> = std::iter::repeat_with(|| {
///         state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
///         (state >> 56) as u8
///     })
///     .take(512)
///     .collect();
///     let program = Program::arbitrary_take_rest(Unstructured::new(&bytes))?;
///     match harness.run(&program.encode(), Checks::default()) {
///         Ok(outcome) => {
///             operations += outcome.operations;
///             effective += outcome.effective;
///         }
///         Err(failure) => panic!("{}\n{program:?}", failure.violation),
///     }
/// }
/// assert!(effective * 10 > operations * 9);
/// # Ok::<(), arbitrary::Error>(())
/// ```
#[derive(Clone, Default, PartialEq)]
pub struct Program {
    /// The image's options, fixed before the first operation.
    pub prologue: Prologue,
    /// The operations, in order.
    pub operations: Vec<Operation>,
}

impl Program {
    /// Decodes any bytes. An incomplete last record ends the program; a record without a meaning is skipped; missing
    /// bytes of the prologue are zeros.
    pub fn decode(input: &[u8]) -> Self {
        let mut program = Self::default();
        program.decode_from(input);
        program
    }

    /// Decodes any bytes as [`Program::decode`] does, and reuses the buffer.
    pub fn decode_from(&mut self, input: &[u8]) {
        self.operations.clear();
        let (&version, rest) = input.split_first().unwrap_or((&0, &[]));
        let mut prologue = [0; PROLOGUE_BYTES - 1];
        let known = rest.len().min(prologue.len());
        prologue[..known].copy_from_slice(&rest[..known]);
        if version >= UNKNOWN_ENCODINGS {
            self.prologue = Prologue::default();
            return;
        }
        self.prologue = Prologue::decode(&prologue);
        self.operations.extend(records(input).filter_map(|(_, _, operation)| operation));
    }

    /// Returns the canonical bytes of the program, which is framed first.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes =
            Vec::with_capacity(PROLOGUE_BYTES + self.operations.len() * OPERATION_BYTES);
        bytes.push(0);
        bytes.extend(self.prologue.encode());
        bytes.extend(framed(&self.operations).flat_map(|operation| operation.encode()));
        bytes
    }
}

/// Returns the complete records of an input, each with its program counter (the offset of its first byte in the input)
/// and its operation, if it has one.
pub fn records(input: &[u8]) -> Decoder<'_> {
    let known = input.first().is_some_and(|version| *version < UNKNOWN_ENCODINGS);
    let behind = input.get(PROLOGUE_BYTES..).filter(|_| known).unwrap_or_default();
    let (records, _) = behind.as_chunks::<OPERATION_BYTES>();
    Decoder::new(PROLOGUE_BYTES, records)
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.prologue)?;
        write_lines(f, framed(&self.operations))
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The bytes of a program, as a fuzz target receives them. They are decoded only when the program runs. The `Debug`
/// output, which `cargo fuzz fmt` prints, is the program's text.
#[derive(Clone, Copy)]
pub struct Input<'a>(pub &'a [u8]);

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Program::decode(self.0), f)
    }
}

impl<'a> Arbitrary<'a> for Input<'a> {
    fn arbitrary(u: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let length = u.len();
        Ok(Self(u.bytes(length)?))
    }

    fn arbitrary_take_rest(u: Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(Self(u.take_rest()))
    }
}

#[cfg(test)]
mod tests {
    use crate::images::content::entropy::Entropy;

    use super::*;

    fn random_bytes(entropy: &mut Entropy) -> Vec<u8> {
        let length = entropy.below(400) as usize;
        (0..length).map(|_| entropy.next_u64() as u8).collect()
    }

    #[test]
    fn decoding_is_total_and_canonical() {
        let mut entropy = Entropy::new(1);
        for _ in 0..5000 {
            let bytes = random_bytes(&mut entropy);
            let program = Program::decode(&bytes);
            let encoded = program.encode();
            assert_eq!(Program::decode(&encoded), program);
            assert_eq!(Program::decode(&encoded).encode(), encoded);
        }
    }

    #[test]
    fn a_changed_byte_changes_at_most_one_operation() {
        let mut entropy = Entropy::new(2);
        let (mut changes, mut local) = (0u32, 0u32);
        for _ in 0..500 {
            let bytes = random_bytes(&mut entropy);
            if bytes.len() < 60 {
                continue;
            }
            let before = Program::decode(&bytes);
            for _ in 0..20 {
                let mut changed = bytes.clone();
                let at = entropy.below(bytes.len() as u64) as usize;
                changed[at] ^= 1 << entropy.below(8);
                let after = Program::decode(&changed);
                // An operation that appears or disappears is one change too.
                let lcs = longest_common(&before.operations, &after.operations);
                let operations = before.operations.len().max(after.operations.len()) - lcs;
                let prologue = usize::from(before.prologue != after.prologue);
                changes += 1;
                local += u32::from(operations + prologue <= 1);
            }
        }
        assert!(local * 100 >= changes * 95, "{local} of {changes} changes were local");
    }

    fn longest_common(a: &[Operation], b: &[Operation]) -> usize {
        let head = a.iter().zip(b).take_while(|(x, y)| x == y).count();
        let tails = a[head..].iter().rev().zip(b[head..].iter().rev());
        head + tails.take_while(|(x, y)| x == y).count()
    }

    #[test]
    fn every_field_of_the_prologue_reaches_all_of_its_values() {
        for (at, values) in [(2, 13), (3, 7), (4, 64), (12, 4), (13, 4), (14, 4)] {
            let mut seen = std::collections::HashSet::new();
            for byte in 0..=255u8 {
                let mut bytes = [0; PROLOGUE_BYTES];
                bytes[at] = byte;
                seen.insert(format!("{}", Program::decode(&bytes).prologue));
            }
            assert_eq!(seen.len(), values, "byte {at}");
        }
    }

    #[test]
    fn cut_and_unknown_programs_are_programs() {
        assert_eq!(Program::decode(&[]), Program::default());
        assert_eq!(Program::decode(&[255; 100]), Program::default());
        let mut bytes = Program::default().encode();
        bytes.extend([0; OPERATION_BYTES + 3]);
        assert_eq!(Program::decode(&bytes).operations.len(), 1);
        // A number of the second table without a meaning yet.
        bytes[PROLOGUE_BYTES..][..2].copy_from_slice(&[33, 255]);
        assert_eq!(Program::decode(&bytes).operations.len(), 0);
    }
}
