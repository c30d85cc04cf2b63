//! The length of a snapshot's extra data.

use std::fmt;

use bytes::{Buf, BufMut};

use super::Operand;

/// A length of extra data in bytes: 0 to 1,024, as much as QEMU opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extra(u16);

impl Extra {
    const VALUES: u16 = 1025;

    /// The number of bytes.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl Operand for Extra {
    const BYTES: usize = 2;
    const EXPECTED: &'static str = "0 to 1024";

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(bytes.get_u16_le() % Self::VALUES)
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u16_le(self.0);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
    fn parse(text: &str) -> Option<Self> {
        let length = text.parse().ok()?;
        (length < Self::VALUES).then_some(Self(length))
    }
}
