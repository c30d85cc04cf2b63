//! Operands of bitmaps.

use std::fmt;

use bytes::{Buf, BufMut};

use super::encoding::Operand;
use super::kind::OperandKind;

/// Flags of a bitmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BitmapFlags(u8);

impl BitmapFlags {
    /// The bitmap was not saved correctly.
    pub const IN_USE: Self = Self(1);
    /// The bitmap must reflect all changes of the disk.
    pub const AUTO: Self = Self(2);
    /// The texts, indexed by value.
    const TEXTS: [&'static str; 4] = ["none", "in_use", "auto", "in_use,auto"];

    /// Reports whether all flags of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl Operand for BitmapFlags {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "none, in_use, auto or in_use,auto";
    const KIND: OperandKind = OperandKind::Content;

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(bytes.get_u8() % 4)
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self.0);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::TEXTS[usize::from(self.0)])
    }
    fn parse(text: &str) -> Option<Self> {
        let value = Self::TEXTS.iter().position(|known| *known == text)?;
        Some(Self(value as u8))
    }
}
