//! The interface of operands: decoding, encoding, printing and parsing.

use std::fmt;

use bytes::BufMut;

use super::kind::OperandKind;

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
