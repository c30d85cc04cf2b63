//! Entries of refcount blocks and of the refcount table (specification, "Host cluster management").

use crate::disk::offsets::HostOffset;

/// Bits 9–63 of a refcount table entry: where the block lies.
const BLOCK_MASK: u64 = !511;

/// Where a refcount table entry's block lies; `None` where there is none.
pub fn block_offset(entry: u64) -> Option<HostOffset> {
    match entry & BLOCK_MASK {
        0 => None,
        offset => Some(HostOffset::new(offset)),
    }
}

/// The refcount at `index` of the block part `bytes`, or `None` past its end. Below 8 bits, counts
/// are packed from the least significant bit of each byte; from 16 bits they are big-endian.
#[inline]
pub fn get(bytes: &[u8], refcount_order: u32, index: usize) -> Option<u64> {
    if refcount_order < 3 {
        let per_byte_bits = 3 - refcount_order;
        let byte = *bytes.get(index >> per_byte_bits)?;
        let slot = index & ((1 << per_byte_bits) - 1);
        let width = 1 << refcount_order;
        return Some(u64::from(byte >> (slot * width)) & ((1 << width) - 1));
    }
    let width = 1usize << (refcount_order - 3);
    let start = index.checked_mul(width)?;
    let entry = bytes.get(start..start.checked_add(width)?)?;
    Some(entry.iter().fold(0, |count, byte| count << 8 | u64::from(*byte)))
}

/// Eight bytes of a block in which every entry is `count`.
#[inline]
pub fn uniform_word(refcount_order: u32, count: u64) -> [u8; 8] {
    // Doubled until it fills the word; entries are alike, so that their order does not matter, and
    // from 16 bits on each is big-endian as the word is.
    let mut word = count;
    for order in refcount_order..6 {
        word |= word << (1 << order);
    }
    word.to_be_bytes()
}

/// Calls `run` with each run of equal counts that are not zero in the block part `bytes`, which is a
/// multiple of eight long: the index of its first entry, how many, and the count. Neighbouring runs
/// may have the same count.
#[inline]
pub fn for_each_run(bytes: &[u8], refcount_order: u32, mut run: impl FnMut(u64, u64, u64)) {
    let one = uniform_word(refcount_order, 1);
    let per_word = 64u64 >> refcount_order;
    for (first, word) in (0..).step_by(per_word as usize).zip(bytes.as_chunks::<8>().0) {
        if *word == [0; 8] {
            continue;
        }
        if *word == one {
            run(first, per_word, 1);
            continue;
        }
        for index in 0..per_word {
            match get(word, refcount_order, index as usize) {
                None | Some(0) => {}
                Some(count) => run(first + index, 1, count),
            }
        }
    }
}

/// Stores `count` in the `entries` of the block part `bytes`, which must still be zero there.
#[inline]
pub fn set_run(bytes: &mut [u8], refcount_order: u32, entries: std::ops::Range<usize>, count: u64) {
    let per_word = 64usize >> refcount_order;
    let word = uniform_word(refcount_order, count);
    let mut index = entries.start;
    while index < entries.end {
        let whole = index.is_multiple_of(per_word) && entries.end - index >= per_word;
        let at = index / per_word * 8;
        match bytes.get_mut(at..at + 8) {
            Some(bytes) if whole => {
                bytes.copy_from_slice(&word);
                index += per_word;
            }
            _ => {
                set(bytes, refcount_order, index, count);
                index += 1;
            }
        }
    }
}

/// Stores `count` at `index` of the block part `bytes`, whose entry there must still be zero.
/// Nothing is stored past the end; bits of `count` beyond the width are dropped.
#[inline]
pub fn set(bytes: &mut [u8], refcount_order: u32, index: usize, count: u64) {
    if refcount_order < 3 {
        let per_byte_bits = 3 - refcount_order;
        let slot = index & ((1 << per_byte_bits) - 1);
        let width = 1 << refcount_order;
        if let Some(byte) = bytes.get_mut(index >> per_byte_bits) {
            *byte |= ((count & ((1 << width) - 1)) as u8) << (slot * width);
        }
        return;
    }
    let width = 1usize << (refcount_order - 3);
    if let Some(entry) = bytes.get_mut(index * width..(index + 1) * width) {
        entry.copy_from_slice(&count.to_be_bytes()[8 - width..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_round_trip_at_every_order() {
        for order in 0..=6 {
            let bits = 1u32 << order;
            let max = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
            let mut block = [0u8; 64];
            let entries = 64 * 8 / bits as usize;
            for index in 0..entries {
                set(&mut block, order, index, (index as u64 * 7 + 1) & max);
            }
            for index in 0..entries {
                assert_eq!(get(&block, order, index), Some((index as u64 * 7 + 1) & max));
            }
            assert_eq!(get(&block, order, entries), None);
        }
    }

    #[test]
    fn runs_agree_with_single_counts() {
        for order in 0..=6 {
            let entries = (64 * 8) >> order;
            for (start, end, count) in [(0, entries, 1), (3, entries - 2, 1), (1, 6, 2), (5, 5, 1)]
            {
                let (start, end): (usize, usize) = (start, end);
                let count = if order == 0 { 1 } else { count };
                let (mut runs, mut singles) = ([0; 64], [0; 64]);
                set_run(&mut runs, order, start..end, count);
                (start..end).for_each(|index| set(&mut singles, order, index, count));
                assert_eq!(runs, singles, "order {order}, {start}..{end}");
                let mut seen = Vec::new();
                for_each_run(&runs, order, |first, length, count| {
                    seen.extend((first..first + length).map(|index| (index as usize, count)));
                });
                assert_eq!(seen, (start..end).map(|index| (index, count)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn narrow_counts_are_packed_from_the_least_significant_bit() {
        let mut block = [0u8; 2];
        set(&mut block, 0, 0, 1);
        set(&mut block, 0, 9, 1);
        assert_eq!(block, [0b1, 0b10]);
        let mut block = [0u8; 2];
        set(&mut block, 2, 1, 0xA);
        assert_eq!(block, [0xA0, 0]);
        let mut block = [0u8; 4];
        set(&mut block, 4, 1, 0x1234);
        assert_eq!(block, [0, 0, 0x12, 0x34]);
    }
}
