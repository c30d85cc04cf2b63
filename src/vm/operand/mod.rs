//! Operands: how each is decoded from any bytes, encoded, printed and parsed. Every operand folds all
//! values of its bytes into its range; the folds are frozen, because corpus files mean what they
//! mean through them.

mod bitmap;
mod extra;
mod features;
mod file;
mod header;
mod payload;
mod position;
mod size;
mod word;

use std::fmt;

use bytes::{Buf, BufMut};

pub use bitmap::{BitmapFlags, NameLength};
pub use extra::Extra;
pub use features::Features;
pub use file::Hidden;
pub use payload::AnyShape;
pub use position::{Anchor, At, Count, Inside};
pub use size::{Gap, Length, Magnitude, Relative, Size, Skew};
pub use word::{Base, Change, DataIn, Keep};

/// A field of a record.
pub trait Operand: Copy + PartialEq + fmt::Debug {
    /// How many bytes it takes.
    const BYTES: usize;
    /// What its text looks like, for messages.
    const EXPECTED: &'static str;

    /// From the next [`Operand::BYTES`] bytes, of any value. There are that many.
    fn decode(bytes: &mut &[u8]) -> Self;
    /// To the canonical bytes.
    fn encode(self, out: &mut impl BufMut);
    /// Writes the text.
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    /// From the text; `None` where it is not one.
    fn parse(text: &str) -> Option<Self>;
}

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

/// Writes the names of the bits that are set, with commas, or `none`.
fn print_bits(bits: u16, names: &[&str], f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
fn parse_bits(text: &str, names: &[&str]) -> Option<u16> {
    if text == "none" {
        return Some(0);
    }
    text.split(',').try_fold(0, |bits, name| {
        let bit = names.iter().position(|known| *known == name)?;
        Some(bits | 1 << bit)
    })
}
