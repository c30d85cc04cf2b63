//! Operands for the options of a header.

use std::fmt;

use bytes::{Buf, BufMut};

use crate::images::qcow2::{HeaderFlags, HeaderLength};

use super::encoding::{Operand, parse_bits, print_bits};
use super::kind::OperandKind;

/// Two bytes. 0 is the shortest length; odd numbers count up from 104 bytes and even numbers count down from the
/// cluster size, so that each number is a different length.
impl Operand for HeaderLength {
    const BYTES: usize = 2;
    const EXPECTED: &'static str =
        "shortest, 104+N with N up to 32767, or cluster-N with N up to 32766";
    const KIND: OperandKind = OperandKind::Other;

    fn decode(bytes: &mut &[u8]) -> Self {
        match bytes.get_u16_le() {
            0 => Self::Shortest,
            odd if odd % 2 == 1 => Self::Above(odd / 2),
            even => Self::Below(even / 2 - 1),
        }
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u16_le(match self {
            Self::Shortest => 0,
            Self::Above(steps) => steps * 2 + 1,
            Self::Below(steps) => steps * 2 + 2,
        });
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shortest => f.write_str("shortest"),
            Self::Above(steps) => write!(f, "104+{steps}"),
            Self::Below(steps) => write!(f, "cluster-{steps}"),
        }
    }
    fn parse(text: &str) -> Option<Self> {
        if text == "shortest" {
            return Some(Self::Shortest);
        }
        if let Some(steps) = text.strip_prefix("104+") {
            return steps.parse().ok().filter(|steps| *steps <= 32767).map(Self::Above);
        }
        let steps = text.strip_prefix("cluster-")?.parse().ok()?;
        (steps <= 32766).then_some(Self::Below(steps))
    }
}

/// Two bytes of flags. Decoding ignores bits without a meaning.
impl Operand for HeaderFlags {
    const BYTES: usize = 2;
    const EXPECTED: &'static str = "none, or names with commas: dirty, corrupt, out_of_date, \
                                    compatible_bits, autoclear_bits, feature_names, unknown_names, \
                                    junk, no_end, name_at_end, empty_name, no_format";
    const KIND: OperandKind = OperandKind::Content;

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(bytes.get_u16_le() & ((1 << Self::WORDS.len()) - 1))
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u16_le(self.0);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print_bits(self.0, &Self::WORDS, f)
    }
    fn parse(text: &str) -> Option<Self> {
        Some(Self(parse_bits(text, &Self::WORDS)?))
    }
}
