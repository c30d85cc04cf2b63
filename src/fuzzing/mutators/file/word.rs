//! Changes a number of a file: a field or an entry, in either order of bytes.

use crate::fuzzing::mutators::file_context::FileContext;
use crate::images::entropy::Entropy;

/// The number of places that are looked at for a number other than zero: most words of an image are zero.
const LOOKS: usize = 16;
const WIDTHS_BYTES: [usize; 4] = [1, 2, 4, 8];

pub(in crate::fuzzing::mutators) fn change(file: &mut [u8], context: &mut FileContext) -> bool {
    let width = WIDTHS_BYTES[context.index(WIDTHS_BYTES.len())];
    let Some(at) = place(file, width, context) else { return false };
    let is_big_endian = context.entropy.one_in(2);
    let before = number(&file[at..at + width], is_big_endian);
    let after = match context.entropy.one_in(6) {
        false => changed(before, &mut context.entropy),
        true => match place(file, width, context) {
            Some(other) => number(&file[other..other + width], is_big_endian),
            None => return false,
        },
    };
    put(&mut file[at..at + width], after, is_big_endian);
    number(&file[at..at + width], is_big_endian) != before
}

/// Returns another number: a neighbour, one that differs in a bit or by a power of two, or a boundary.
pub(super) fn changed(before: u64, entropy: &mut Entropy) -> u64 {
    match entropy.below(5) {
        0 => before.wrapping_add(1 + entropy.below(16)),
        1 => before.wrapping_sub(1 + entropy.below(16)),
        2 => before.wrapping_add(1 << entropy.below(64)),
        3 => before ^ 1 << entropy.below(64),
        _ => match entropy.below(3) {
            0 => 0,
            1 => u64::MAX,
            _ => (1 << entropy.below(64)) - entropy.below(2),
        },
    }
}

/// Returns the place of an aligned number, which is not zero if one of some places has such a one.
fn place(file: &[u8], width: usize, context: &mut FileContext) -> Option<usize> {
    let last = file.len().checked_sub(width)?;
    let mut at = 0;
    for _ in 0..LOOKS {
        at = context.place(last + 1) & !(width - 1);
        if file[at..at + width].iter().any(|byte| *byte != 0) {
            break;
        }
    }
    Some(at)
}

/// Returns the number in up to eight bytes.
pub(super) fn number(bytes: &[u8], is_big_endian: bool) -> u64 {
    let join = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    match is_big_endian {
        true => bytes.iter().fold(0, join),
        false => bytes.iter().rev().fold(0, join),
    }
}

/// Writes the lowest bytes of a number.
pub(super) fn put(bytes: &mut [u8], number: u64, is_big_endian: bool) {
    let lowest = number.to_le_bytes();
    let bytes = bytes.iter_mut();
    match is_big_endian {
        true => bytes.rev().zip(lowest).for_each(|(byte, value)| *byte = value),
        false => bytes.zip(lowest).for_each(|(byte, value)| *byte = value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_an_order() {
        let mut bytes = [0; 4];
        put(&mut bytes, 0x0102_0304, true);
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert_eq!((number(&bytes, true), number(&bytes, false)), (0x0102_0304, 0x0403_0201));
        put(&mut bytes, 0x0102_0304, false);
        assert_eq!(bytes, [4, 3, 2, 1]);
    }
}
