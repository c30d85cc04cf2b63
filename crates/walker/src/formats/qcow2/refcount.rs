//! Entries of refcount blocks and of the refcount table (specification, "Host cluster management").

use crate::disk::offsets::HostOffset;

/// Bits 9–63 of a refcount table entry: the host offset of the block.
const BLOCK_MASK: u64 = !511;

/// Returns the host offset of the block that a refcount table entry names, or `None` if it names no block.
pub fn block_offset(entry: u64) -> Option<HostOffset> {
    match entry & BLOCK_MASK {
        0 => None,
        offset => Some(HostOffset::new(offset)),
    }
}

/// Returns the refcount at `index` of `bytes`, a part of a block, or `None` past its end. Counts of less than 8 bits
/// are packed from the least significant bit of each byte; counts of 16 bits or more are big-endian.
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

/// Returns eight bytes of a block in which every entry is `count`.
#[inline]
pub fn uniform_word(refcount_order: u32, count: u64) -> [u8; 8] {
    // Double the pattern until it fills the word. All entries are equal, so their order does not matter. From 16 bits
    // on, entries are big-endian, and so is the word.
    let mut word = count;
    for order in refcount_order..6 {
        word |= word << (1 << order);
    }
    word.to_be_bytes()
}

/// Calls `run` with each run of equal counts in `bytes`, a part of a block whose length is a multiple of eight: the
/// index of the first entry, the number of entries, and the count. Runs of zeros are skipped. Two neighbouring runs
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_lie_where_the_specification_says() {
        // Narrow counts are packed from the least significant bit; wide ones are big-endian.
        assert_eq!(get(&[0, 0b10], 0, 9), Some(1));
        assert_eq!(get(&[0b1000_0000], 1, 3), Some(2));
        assert_eq!(get(&[0xA0], 2, 1), Some(0xA));
        assert_eq!(get(&[0, 200], 3, 1), Some(200));
        assert_eq!(get(&[0, 0, 0x12, 0x34], 4, 1), Some(0x1234));
        assert_eq!(get(&[0xFF; 8], 6, 0), Some(u64::MAX));
        assert_eq!(get(&[0xFF; 8], 6, 1), None);
    }

    #[test]
    fn runs_agree_with_single_counts() {
        for order in 0..=6 {
            for pattern in [[0; 8], uniform_word(order, 1), [0x11; 8], [0, 0, 0, 0, 0, 0, 0, 0xF0]]
            {
                let part = [[0; 8], pattern, uniform_word(order, 1)].concat();
                let entries = (part.len() * 8) >> order;
                let singles = (0..entries).filter_map(|at| Some((at, get(&part, order, at)?)));
                let singles: Vec<_> = singles.filter(|(_, count)| *count > 0).collect();
                let mut runs = Vec::new();
                for_each_run(&part, order, |first, length, count| {
                    runs.extend((first..first + length).map(|index| (index as usize, count)));
                });
                assert_eq!(runs, singles, "order {order}, {pattern:?}");
            }
        }
    }
}
