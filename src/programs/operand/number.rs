//! Operands that are plain numbers.

use std::fmt;
use std::marker::PhantomData;

use bytes::{Buf, BufMut};

use crate::formats::qcow2::constants::MAX_BITMAP_NAME_BYTES;

use super::encoding::Operand;
use super::kind::OperandKind;

/// Any byte.
impl Operand for u8 {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "0 to 255";
    const KIND: OperandKind = OperandKind::Other;

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

/// The meaning of the numbers of a [`Number`].
pub trait Meaning: Copy + PartialEq + fmt::Debug {
    /// The kind of the operand.
    const KIND: OperandKind;
}

/// Declares meanings of numbers.
macro_rules! meanings {
    ($($(#[$doc:meta])* $name:ident = $kind:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name;

        impl Meaning for $name {
            const KIND: OperandKind = $kind;
        }
    )+};
}

meanings! {
    /// No particular meaning.
    Any = OperandKind::Other;
    /// A small count or index.
    OfFew = OperandKind::Few;
    /// log2 of the cluster size.
    OfClusterSizes = OperandKind::Ranked(&canonical(ClusterBits::PLAINEST_FIRST));
    /// log2 of the refcount width.
    OfRefcountWidths = OperandKind::Ranked(&canonical(RefcountOrder::PLAINEST_FIRST));
}

/// A number from `LOW` to `HIGH`, both included, in one byte.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Number<const LOW: u8, const HIGH: u8, M = Any>(u8, PhantomData<M>);

/// A small count or index, for subclusters, snapshots and bitmaps.
pub type Few<const LOW: u8, const HIGH: u8> = Number<LOW, HIGH, OfFew>;
/// log2 of the cluster size.
pub type ClusterBits = Number<9, 21, OfClusterSizes>;
/// log2 of the refcount width.
pub type RefcountOrder = Number<0, 6, OfRefcountWidths>;

impl ClusterBits {
    /// All values, the plainest first: QEMU's default, easily read sizes, the rest.
    pub const PLAINEST_FIRST: [Self; 13] =
        numbers([16, 12, 9, 10, 11, 13, 14, 15, 17, 18, 19, 20, 21]);
}

impl RefcountOrder {
    /// All values, the plainest first, which is QEMU's default.
    pub const PLAINEST_FIRST: [Self; 7] = numbers([4, 3, 5, 6, 2, 1, 0]);
}

impl<const LOW: u8, const HIGH: u8, M> fmt::Debug for Number<LOW, HIGH, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Number").field(&self.0).finish()
    }
}

const fn numbers<const LOW: u8, const HIGH: u8, M: Meaning, const N: usize>(
    values: [u8; N],
) -> [Number<LOW, HIGH, M>; N] {
    let mut numbers = [Number::LOWEST; N];
    let mut at = 0;
    while at < N {
        assert!(values[at] >= LOW && values[at] <= HIGH);
        numbers[at] = Number(values[at], PhantomData);
        at += 1;
    }
    numbers
}

/// Returns the canonical byte of each number.
const fn canonical<const LOW: u8, const HIGH: u8, M: Meaning, const N: usize>(
    numbers: [Number<LOW, HIGH, M>; N],
) -> [u8; N] {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        bytes[at] = numbers[at].0 - LOW;
        at += 1;
    }
    bytes
}

impl<const LOW: u8, const HIGH: u8, M> Number<LOW, HIGH, M> {
    /// The smallest value.
    pub const LOWEST: Self = Self(LOW, PhantomData);

    /// Returns the number for `value`, or `None` if it is out of range.
    pub const fn new(value: u8) -> Option<Self> {
        if value < LOW || value > HIGH { None } else { Some(Self(value, PhantomData)) }
    }

    /// Returns the value.
    pub const fn get(&self) -> u8 {
        self.0
    }
}

impl<const LOW: u8, const HIGH: u8, M: Meaning> Operand for Number<LOW, HIGH, M> {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "a number in range";
    const KIND: OperandKind = M::KIND;

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(LOW + bytes.get_u8() % (HIGH - LOW + 1), PhantomData)
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
    const KIND: OperandKind = OperandKind::Other;

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

/// Defines a 16-bit number from 0 to a highest value, which is included. Decoding folds larger numbers into the range.
macro_rules! up_to {
    ($(#[$doc:meta])* $name:ident, $highest:expr, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(u16);

        impl $name {
            /// The highest value.
            pub const HIGHEST: Self = Self($highest);

            /// Returns the number for `value`, or the highest one if it is larger.
            pub const fn at_most(value: usize) -> Self {
                if value < $highest as usize { Self(value as u16) } else { Self::HIGHEST }
            }

            /// Returns the value.
            pub const fn get(self) -> u16 {
                self.0
            }
        }

        impl Operand for $name {
            const BYTES: usize = 2;
            const EXPECTED: &'static str = $expected;
            const KIND: OperandKind = OperandKind::Other;

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
    /// The length of a bitmap's name in bytes: at most the length that QEMU accepts.
    NameLength,
    MAX_BITMAP_NAME_BYTES,
    "0 to 1023"
);
up_to!(
    /// The length of a snapshot's extra data in bytes: at most the length that QEMU accepts.
    Extra,
    1024,
    "0 to 1024"
);
