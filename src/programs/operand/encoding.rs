//! How an operand is decoded, encoded, printed and parsed.

use std::fmt;

use bytes::BufMut;

use super::kind::Kind;

/// A field of a record.
pub trait Operand: Copy + PartialEq + fmt::Debug {
    /// How many bytes it takes.
    const BYTES: usize;
    /// What its text looks like, for messages.
    const EXPECTED: &'static str;
    /// What its values stand for: how the minimizer and the mutators treat them.
    const KIND: Kind;

    /// From the next [`Operand::BYTES`] bytes, of any value. There are that many.
    fn decode(bytes: &mut &[u8]) -> Self;
    /// To the canonical bytes.
    fn encode(self, out: &mut impl BufMut);
    /// Writes the text.
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    /// From the text; `None` where it is not one.
    fn parse(text: &str) -> Option<Self>;
}

/// Writes the names of the bits that are set, with commas, or `none`.
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

/// The other way round; `None` where a name is none of them.
pub(super) fn parse_bits(text: &str, names: &[&str]) -> Option<u16> {
    if text == "none" {
        return Some(0);
    }
    text.split(',').try_fold(0, |bits, name| {
        let bit = names.iter().position(|known| *known == name)?;
        Some(bits | 1 << bit)
    })
}
