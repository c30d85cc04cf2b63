//! The order of file operations while requests are in flight.

use std::fmt;

use bytes::{Buf, BufMut};

use super::encoding::{Operand, OperandKind, operand};

/// Choices among the file operations that wait: the index of the one that happens next, from 0 to 3, for the first 16
/// ones. After these, the operation that has waited longest comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnOrder(u32);

impl TurnOrder {
    /// The number of choices.
    pub(crate) const CHOICES: usize = 16;
    /// The most operations from which a choice selects.
    pub(crate) const MOST_WAITING: usize = 4;

    /// Returns the order with these choices: the first one is the two lowest bits.
    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns this order, but from the choice `first` on, the operation that has waited longest is not chosen while
    /// another one waits.
    pub(crate) const fn holding_back_from(self, first: usize) -> Self {
        // The second of those that wait, for each choice.
        let second = 0x5555_5555;
        match first < Self::CHOICES {
            true => Self(self.0 & !(u32::MAX << (2 * first)) | second << (2 * first)),
            false => self,
        }
    }

    /// Returns the choices, in their order.
    pub fn choices(self) -> impl Iterator<Item = usize> {
        (0..Self::CHOICES).map(move |nth| (self.0 >> (2 * nth)) as usize % Self::MOST_WAITING)
    }

    /// Returns the number of choices up to the last one that is not 0; at least 1.
    fn digits(self) -> usize {
        (u32::BITS - self.0.leading_zeros()).div_ceil(2).max(1) as usize
    }

    fn parsed(text: &str) -> Option<Self> {
        let is_digit = |digit: &u8| matches!(digit, b'0'..=b'3');
        let is_order = (1..=Self::CHOICES).contains(&text.len());
        let digits =
            Some(text.bytes()).filter(|_| is_order && text.as_bytes().iter().all(is_digit));
        let order = digits?.rev().fold(0, |order, digit| order << 2 | u32::from(digit & 3));
        Some(Self(order))
    }
}

/// Prints the choices as digits, without the zeros at the end.
impl fmt::Display for TurnOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.choices().take(self.digits()).try_for_each(|choice| write!(f, "{choice}"))
    }
}

operand!(
    TurnOrder,
    u32,
    OperandKind::Other,
    "up to 16 digits from 0 to 3",
    TurnOrder,
    |it| it.0,
    |it, f| write!(f, "{it}"),
    TurnOrder::parsed,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operation_that_has_waited_longest_is_held_back() {
        let held = |first| TurnOrder(u32::MAX).holding_back_from(first).to_string();
        assert_eq!(held(0), "1111111111111111");
        assert_eq!(held(3), "3331111111111111");
        assert_eq!(held(15), "3333333333333331");
        assert_eq!(held(16), "3333333333333333");
    }

    #[test]
    fn choices_are_digits() {
        for (bits, text) in
            [(0, "0"), (1, "1"), (0b11_00_10, "203"), (u32::MAX, "3333333333333333")]
        {
            assert_eq!(TurnOrder(bits).to_string(), text);
            assert_eq!(TurnOrder::parsed(text), Some(TurnOrder(bits)));
        }
        assert_eq!(TurnOrder(0b11_00_10).choices().take(4).collect::<Vec<_>>(), [2, 0, 3, 0]);
        for text in ["", "4", "a", "33333333333333333"] {
            assert_eq!(TurnOrder::parsed(text), None, "{text}");
        }
    }
}
