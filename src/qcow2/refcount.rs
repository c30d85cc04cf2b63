//! Entries of refcount blocks and of the refcount table (specification, "Host cluster management").

use super::units::HostOffset;

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
