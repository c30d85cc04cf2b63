//! Operands that are plain numbers.

use std::fmt;

use bytes::{Buf, BufMut};

use crate::formats::qcow2::constants::MAX_BITMAP_NAME_BYTES;

use super::encoding::Operand;

/// Any byte.
impl Operand for u8 {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "0 to 255";

    fn decode(bytes: &mut &[u8]) -> Self {
        bytes.get_u8()
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// A number from `LOW` up to and with `HIGH`, in a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number<const LOW: u8, const HIGH: u8>(u8);

impl<const LOW: u8, const HIGH: u8> Number<LOW, HIGH> {
    /// The smallest.
    pub const LOWEST: Self = Self(LOW);

    /// From a value; `None` out of range.
    pub const fn new(value: u8) -> Option<Self> {
        if value < LOW || value > HIGH { None } else { Some(Self(value)) }
    }

    /// Its value.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl<const LOW: u8, const HIGH: u8> Operand for Number<LOW, HIGH> {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "a number in range";

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(LOW + bytes.get_u8() % (HIGH - LOW + 1))
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self.0 - LOW);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
    fn parse(text: &str) -> Option<Self> {
        Self::new(text.parse().ok()?)
    }
}

/// A plain 16-bit number.
impl Operand for u16 {
    const BYTES: usize = 2;
    const EXPECTED: &'static str = "0 to 65535";

    fn decode(bytes: &mut &[u8]) -> Self {
        bytes.get_u16_le()
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u16_le(self);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// Defines a number of 16 bits from 0 up to and with a highest one. What is larger is folded.
macro_rules! up_to {
    ($(#[$doc:meta])* $name:ident, $highest:expr, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(u16);

        impl $name {
            /// Its value.
            pub const fn get(self) -> u16 {
                self.0
            }
        }

        impl Operand for $name {
            const BYTES: usize = 2;
            const EXPECTED: &'static str = $expected;

            fn decode(bytes: &mut &[u8]) -> Self {
                Self(bytes.get_u16_le() % ($highest + 1))
            }
            fn encode(self, out: &mut impl BufMut) {
                out.put_u16_le(self.0);
            }
            fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok().filter(|value| *value <= $highest).map(Self)
            }
        }
    };
}

up_to!(
    /// A length in bytes: 0 to 4,095.
    Length,
    4095,
    "0 to 4095"
);
up_to!(
    /// How long a bitmap's name is in bytes: as much as QEMU opens.
    NameLength,
    MAX_BITMAP_NAME_BYTES,
    "0 to 1023"
);
up_to!(
    /// The length of a snapshot's extra data in bytes: as much as QEMU opens.
    Extra,
    1024,
    "0 to 1024"
);
