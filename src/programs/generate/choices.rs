//! The sources from which a generator takes its choices: a stream of random numbers, or bytes that a fuzzer chose.

use crate::images::content::entropy::Entropy;

/// A source of choices. The same source makes the same choices.
pub trait Choices {
    /// Returns a number below `bound`, or 0 if `bound` is 0.
    fn below(&mut self, bound: u64) -> u64;

    /// Returns any 8 bits.
    fn byte(&mut self) -> u8;

    /// Returns any 16 bits.
    fn word(&mut self) -> u16;

    /// Returns any 64 bits.
    fn long(&mut self) -> u64;

    /// Returns true once in `times` choices on average.
    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// A number for each choice. Programs of a seed depend on these numbers, so they never change.
impl Choices for Entropy {
    fn below(&mut self, bound: u64) -> u64 {
        self.below(bound)
    }

    fn byte(&mut self) -> u8 {
        self.next_u64() as u8
    }

    fn word(&mut self) -> u16 {
        self.next_u64() as u16
    }

    fn long(&mut self) -> u64 {
        self.next_u64()
    }
}

/// Choices from bytes: each choice uses as few bytes as it needs, and the next choice uses the next bytes. When the
/// bytes are used up, the choices are those of a stream of random numbers.
#[derive(Debug)]
pub struct ByteChoices<'b> {
    bytes: &'b [u8],
    beyond: Entropy,
}

impl<'b> ByteChoices<'b> {
    /// Returns the choices of `bytes`, then those of `beyond`.
    pub fn new(bytes: &'b [u8], beyond: Entropy) -> Self {
        Self { bytes, beyond }
    }

    /// Returns the bytes that no choice has used yet.
    pub fn unused(&self) -> &'b [u8] {
        self.bytes
    }

    /// Returns the next bytes as a little-endian number.
    fn number<const N: usize>(&mut self) -> u64 {
        let Some((first, rest)) = self.bytes.split_first_chunk::<N>() else {
            self.bytes = &[];
            return self.beyond.next_u64();
        };
        self.bytes = rest;
        first.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

/// Numbers fold into their range as operands do, so a byte below the bound is its own choice.
impl Choices for ByteChoices<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        let number = match bound {
            0 | 1 => 0,
            2..=0x100 => self.number::<1>(),
            0x101..=0x1_0000 => self.number::<2>(),
            _ => self.number::<8>(),
        };
        number.checked_rem(bound).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.number::<1>() as u8
    }

    fn word(&mut self) -> u16 {
        self.number::<2>() as u16
    }

    fn long(&mut self) -> u64 {
        self.number::<8>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_uses_the_bytes_that_its_bound_needs() {
        let bytes: Vec<u8> = (1..=16).collect();
        let mut choices = ByteChoices::new(&bytes, Entropy::new(1));
        assert_eq!((choices.below(0), choices.below(1)), (0, 0));
        assert_eq!((choices.below(2), choices.below(0x100)), (1, 2));
        assert_eq!(choices.below(0x101), 0x0403 % 0x101);
        assert_eq!((choices.byte(), choices.word()), (5, 0x0706));
        assert_eq!(choices.below(1 << 60), 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(choices.unused(), [16]);
    }

    #[test]
    fn a_stream_follows_the_bytes() {
        let (mut choices, mut beyond) = (ByteChoices::new(&[7], Entropy::new(9)), Entropy::new(9));
        // If too few bytes are left for a number, the number comes from the stream.
        assert_eq!(choices.word(), Choices::word(&mut beyond));
        assert!(choices.unused().is_empty());
        assert!((0..100).all(|_| choices.below(10) == beyond.next_u64() % 10));
    }
}
