//! The interface of operands: decoding, encoding, printing and parsing, and the operands of a line of text.

use std::fmt;
use std::ops::Range;

use bytes::BufMut;

/// A field of a record.
pub trait Operand: Copy + PartialEq + fmt::Debug {
    /// The length of the encoding in bytes.
    const BYTES: usize;
    /// A description of the accepted texts, for error messages.
    const EXPECTED: &'static str;
    /// The kind of the values, for the minimizer and the mutators.
    const KIND: OperandKind;

    /// Decodes the next [`Operand::BYTES`] bytes, which may have any value, and advances `bytes` past them.
    fn decode(bytes: &mut &[u8]) -> Self;
    /// Appends the canonical bytes to `out`.
    fn encode(self, out: &mut impl BufMut);
    /// Writes the text.
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    /// Parses the text; returns `None` if it is not a value.
    fn parse(text: &str) -> Option<Self>;
}

/// Declares a type as an operand of one number: the type, the number's type, the [`OperandKind`], the accepted texts,
/// and the functions that decode, encode, print and parse.
macro_rules! operand {
    (
        [$($generics:tt)*] $type:ty, $number:ty, $kind:expr, $expected:expr,
        $decode:expr, $encode:expr, $print:expr, $parse:expr $(,)?
    ) => {
        impl<$($generics)*> Operand for $type {
            const BYTES: usize = size_of::<$number>();
            const EXPECTED: &'static str = $expected;
            const KIND: OperandKind = $kind;

            fn decode(bytes: &mut &[u8]) -> Self {
                let mut number = <$number>::MIN.to_le_bytes();
                Buf::copy_to_slice(bytes, &mut number);
                let decode: fn($number) -> Self = $decode;
                decode(<$number>::from_le_bytes(number))
            }
            fn encode(self, out: &mut impl BufMut) {
                let encode: fn(Self) -> $number = $encode;
                out.put_slice(&encode(self).to_le_bytes());
            }
            fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let print: fn(Self, &mut fmt::Formatter<'_>) -> fmt::Result = $print;
                print(self, f)
            }
            fn parse(text: &str) -> Option<Self> {
                let parse: fn(&str) -> Option<Self> = $parse;
                parse(text)
            }
        }
    };
    ($($operand:tt)+) => { operand!([] $($operand)+); };
}

pub(super) use operand;

/// Writes the names of the set bits, separated by commas, or `none`.
pub(super) fn print_bits(bits: u16, names: &[&str], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if bits == 0 {
        return f.write_str("none");
    }
    let there = names.iter().enumerate().filter(|(bit, _)| bits & 1 << bit != 0);
    for (place, (_, name)) in there.enumerate() {
        write!(f, "{}{name}", if place == 0 { "" } else { "," })?;
    }
    Ok(())
}

/// Parses the output of [`print_bits`]; returns `None` if a name is unknown.
pub(super) fn parse_bits(text: &str, names: &[&str]) -> Option<u16> {
    if text == "none" {
        return Some(0);
    }
    text.split(',').try_fold(0, |bits, name| {
        let bit = names.iter().position(|known| *known == name)?;
        Some(bits | 1 << bit)
    })
}

/// The kind of an operand's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandKind {
    /// A cluster of the disk: an anchor in a byte, then steps in 16 bits.
    Position,
    /// The size of a disk: a shift in a byte, then units and a signed tail in 16 bits each.
    Size,
    /// A distance or a length: units and a shift in a byte each.
    Gap,
    /// A distance in clusters of any magnitude: units and a shift in a byte each.
    FarGap,
    /// The number of clusters of an operation.
    Count,
    /// A small count or index, for subclusters, snapshots and bitmaps.
    Few,
    /// A byte whose canonical values are listed, the plainest first.
    Ranked(&'static [u8]),
    /// The content of data or structures, not their position.
    Content,
    /// Anything else: a number, flags, a choice.
    Other,
}

/// An operand in the record of an operation, or in the prologue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandPlace {
    /// The kind of its values.
    pub kind: OperandKind,
    /// Its first byte.
    pub start: usize,
    /// Its length in bytes.
    pub length_bytes: usize,
}

impl OperandPlace {
    /// Returns the range of its bytes.
    pub const fn bytes(&self) -> Range<usize> {
        self.start..self.start + self.length_bytes
    }

    /// Returns the places of consecutive operands that begin at `start`, from their kinds and lengths.
    pub const fn in_a_row<const N: usize>(
        mut start: usize,
        operands: [(OperandKind, usize); N],
    ) -> [Self; N] {
        let mut places = [Self { kind: OperandKind::Other, start, length_bytes: 0 }; N];
        let mut at = 0;
        while at < N {
            let (kind, length_bytes) = operands[at];
            places[at] = Self { kind, start, length_bytes };
            start += length_bytes;
            at += 1;
        }
        places
    }
}

/// The reason why a line of text is not a record.
pub enum TextError {
    UnknownName(String),
    Operand { name: &'static str, found: String, expected: &'static str },
    Missing(&'static str),
    Unexpected(String),
}

/// The operands of one line. Each one is removed when it is parsed.
pub struct TextOperands<'a> {
    left: Vec<(&'a str, &'a str)>,
}

impl<'a> TextOperands<'a> {
    /// Splits words of the form `name=value`.
    pub fn new(words: impl Iterator<Item = &'a str>) -> Result<Self, TextError> {
        let split = |word: &'a str| {
            word.split_once('=').ok_or_else(|| TextError::Unexpected(word.to_string()))
        };
        Ok(Self { left: words.map(split).collect::<Result<_, _>>()? })
    }

    /// Removes and parses the operand `name`, which is required.
    pub fn take<T: Operand>(&mut self, name: &'static str) -> Result<T, TextError> {
        self.take_with(name, T::EXPECTED, T::parse)
    }

    /// Removes the operand `name`, which is required, and parses it with `parse`.
    pub fn take_with<T>(
        &mut self,
        name: &'static str,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, TextError> {
        let at = self.left.iter().position(|(found, _)| *found == name);
        let (_, value) = self.left.remove(at.ok_or(TextError::Missing(name))?);
        parse(value).ok_or(TextError::Operand { name, found: value.to_string(), expected })
    }

    /// Removes and parses the operand `name`; returns `default` if it is missing.
    pub fn take_or<T: Operand>(&mut self, name: &'static str, default: T) -> Result<T, TextError> {
        match self.take(name) {
            Err(TextError::Missing(_)) => Ok(default),
            found => found,
        }
    }

    /// Returns an error if operands are left.
    pub fn finish(self) -> Result<(), TextError> {
        match self.left.first() {
            Some((name, value)) => Err(TextError::Unexpected(format!("{name}={value}"))),
            None => Ok(()),
        }
    }
}

/// Writes an operand with its name.
pub fn print_operand<T: Operand>(f: &mut fmt::Formatter<'_>, name: &str, value: T) -> fmt::Result {
    write!(f, " {name}=")?;
    value.print(f)
}

/// Bytes that are written as hexadecimal digits.
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Parses hexadecimal digits, two for each byte.
pub fn parse_hex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}
