//! The bytes of writes: each write has other bytes at each guest offset, so that they occur nowhere else.

/// The length of a block of the bytes of a write.
const PATTERN_BLOCK_BYTES: usize = 64;
/// The difference between the words of a block.
const WORD_STEP: u64 = 0xD6E8_FEB8_6659_FD93;

/// Fills `into` with the bytes of a write from a guest offset on. Each write has other bytes at each offset.
pub(super) fn written_bytes(write: u32, guest: u64, into: &mut [u8]) {
    const BLOCK: u64 = PATTERN_BLOCK_BYTES as u64;
    // The write number fills the bits from the top, and the block number from the bottom, so the two do not overlap.
    let of_write = u64::from(write).reverse_bits();
    let block_at = |at: u64| pattern_block(of_write ^ (at / BLOCK));
    // Bytes up to the first whole block of the disk, whole blocks, and the rest.
    let inside = guest % BLOCK;
    let before = ((BLOCK - inside) % BLOCK) as usize;
    let (head, rest) = into.split_at_mut(before.min(into.len()));
    head.copy_from_slice(&block_at(guest)[inside as usize..][..head.len()]);
    let first = guest.saturating_add(head.len() as u64);
    let (blocks, tail) = rest.as_chunks_mut::<PATTERN_BLOCK_BYTES>();
    let ats = (first..).step_by(PATTERN_BLOCK_BYTES);
    for (at, block) in ats.zip(&mut *blocks) {
        *block = block_at(at);
    }
    let last = block_at(first.saturating_add((PATTERN_BLOCK_BYTES * blocks.len()) as u64));
    tail.copy_from_slice(&last[..tail.len()]);
}

/// Returns the bytes of the block with this number. It mixes bits once for all words: once for each would take a
/// twentieth of the time of `writes`.
fn pattern_block(number: u64) -> [u8; PATTERN_BLOCK_BYTES] {
    let (first, mut block) = (mixed(number), [0; PATTERN_BLOCK_BYTES]);
    let (words, _) = block.as_chunks_mut::<8>();
    for (nth, word) in (0..).zip(words) {
        *word = first.wrapping_add(WORD_STEP.wrapping_mul(nth)).to_le_bytes();
    }
    block
}

/// Mixes the bits of a number (the finalizer of SplitMix64).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_write_depend_on_their_offsets_alone() {
        let mut whole = [0; 200];
        written_bytes(3, 1000, &mut whole);
        for start in 0..whole.len() {
            for end in start..whole.len() {
                let mut part = vec![0; end - start];
                written_bytes(3, 1000 + start as u64, &mut part);
                assert_eq!(part, whole[start..end]);
            }
        }
        let mut other = [0; 200];
        written_bytes(4, 1000, &mut other);
        assert!(whole != other);
    }
}
