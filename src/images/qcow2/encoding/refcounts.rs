//! Counts in refcount blocks (specification, "Refcount block entry").

use std::ops::Range;

/// Writes `count` to the `entries` of a part of a block. Their bytes must be zeros. Counts are `1 << refcount_order`
/// bits wide. Counts of less than a byte fill each byte from its lowest bit on; wider ones are big-endian. Entries
/// past the end of `part` and bits of `count` beyond the width are dropped.
#[inline]
pub fn put_run(part: &mut [u8], refcount_order: u32, entries: Range<usize>, count: u64) {
    let width_bits = 1usize << refcount_order;
    let per_word = 64 / width_bits;
    let word = repeated(count, width_bits);
    let mut index = entries.start;
    while index < entries.end {
        let byte = index * width_bits / 8;
        if index.is_multiple_of(per_word)
            && index + per_word <= entries.end
            && let Some(whole) = part.get_mut(byte..byte + 8)
        {
            whole.copy_from_slice(&word);
            index += per_word;
        } else {
            put_one(part, width_bits, index, count);
            index += 1;
        }
    }
}

/// Returns eight bytes in which each entry is `count`.
#[inline]
fn repeated(count: u64, width_bits: usize) -> [u8; 8] {
    // A word with a one at the lowest bit of each entry: all ones, divided by the ones of a single entry.
    let one_entry = u64::MAX >> (64 - width_bits);
    let lowest_bits = u64::MAX / one_entry;
    ((count & one_entry) * lowest_bits).to_be_bytes()
}

#[inline]
fn put_one(part: &mut [u8], width_bits: usize, index: usize, count: u64) {
    let first_bit = index * width_bits;
    if width_bits >= 8 {
        let width_bytes = width_bits / 8;
        super::put(part, first_bit / 8, &count.to_be_bytes()[8 - width_bytes..]);
    } else if let Some(byte) = part.get_mut(first_bit / 8) {
        let kept = count % (1 << width_bits);
        *byte |= (kept << (first_bit % 8)) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_written_as_their_entries_one_by_one() {
        for order in 0..=6 {
            let width_bits = 1usize << order;
            for (start, end) in [(0, 64), (1, 63), (3, 4), (5, 17), (8, 8), (0, 1)] {
                let count = 0x0123_4567_89AB_CDEF;
                let (mut run, mut single) = ([0; 512], [0; 512]);
                put_run(&mut run, order, start..end, count);
                (start..end).for_each(|index| put_one(&mut single, width_bits, index, count));
                assert_eq!(run, single, "order {order}, {start}..{end}");
            }
        }
    }

    #[test]
    fn counts_lie_where_the_specification_says() {
        let written = |order, index, count| {
            let mut block = [0; 16];
            put_run(&mut block, order, index..index + 1, count);
            block
        };
        assert_eq!(written(0, 9, 1)[1], 0b10);
        assert_eq!(written(1, 3, 2)[0], 0b1000_0000);
        assert_eq!(written(2, 1, 5)[0], 0x50);
        assert_eq!(written(3, 1, 200)[1], 200);
        assert_eq!(written(4, 1, 0x0102)[2..4], [1, 2]);
        assert_eq!(written(6, 1, 0x0102)[8..], [0, 0, 0, 0, 0, 0, 1, 2]);
        // Past the end.
        assert_eq!(written(6, 2, 1), [0; 16]);
    }
}
