//! The fill: the bytes between the stamps of guest data, or beside a look. No byte of it is 0, so a reader that returns
//! zeros for a part of the data is found. An image refers to the fill, which costs no copy.

use std::ops::Range;
use std::sync::LazyLock;

use crate::disk::offsets::GuestOffset;
use crate::images::content::{STAMP_BYTES, WriteNumber};
use crate::images::entropy::Entropy;

/// The number of bytes at the beginning of a cluster that the fill covers at most; zeros follow. QEMU's default cluster
/// size has all its bytes filled, and larger ones do not make exported images large.
pub const MAX_FILL_BYTES: usize = 64 << 10;

/// The number of different fills. Two clusters have the same one only by chance.
const FILLS: usize = 1 << 13;
/// The distance in bytes between the beginnings of two fills.
const FILL_STRIDE_BYTES: usize = 8;

/// Bytes in random order, none of them 0. The process makes them once.
static NOISE: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let mut entropy = Entropy::new(0x66_69_6c_6c);
    let length = MAX_FILL_BYTES + FILLS * FILL_STRIDE_BYTES;
    let not_zero = |byte: u8| if byte == 0 { 0xff } else { byte };
    let words = (0..length / 8).flat_map(|_| entropy.next_u64().to_le_bytes().map(not_zero));
    words.collect()
});

/// Returns the bytes of the fill in a part of a cluster, without the zeros that follow it. `guest` is the first byte of
/// the cluster, and `part` counts from there.
pub fn fill(guest: GuestOffset, write: WriteNumber, part: Range<usize>) -> &'static [u8] {
    // Sizes are powers of two from 512 on: the low bits of an offset say nothing.
    let mixed = (guest.get() >> 9 ^ u64::from(write.0) << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let first = (mixed >> 48) as usize % FILLS * FILL_STRIDE_BYTES;
    let end = part.end.min(MAX_FILL_BYTES);
    let start = part.start.min(end);
    &NOISE[first + start..first + end]
}

/// Returns the part of a piece of data that lies between the stamps at its edges. The piece has 512 bytes at least.
pub fn between_stamps(piece: &Range<usize>) -> Range<usize> {
    piece.start + STAMP_BYTES..piece.end - STAMP_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_has_no_zeros_and_differs_from_cluster_to_cluster() {
        let whole =
            |cluster: u64, write| fill(GuestOffset::new(cluster << 9), WriteNumber(write), 0..512);
        assert!(!whole(3, 1).contains(&0));
        let mut different: Vec<_> = (0..64).flat_map(|it| [whole(it, 1), whole(it, 2)]).collect();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() > 120, "{}", different.len());
    }

    #[test]
    fn a_part_is_cut_at_the_end_of_the_fill() {
        let part = |part| fill(GuestOffset::ZERO, WriteNumber(1), part);
        let whole = part(0..1 << 21);
        assert_eq!(whole.len(), MAX_FILL_BYTES);
        assert_eq!(part(16..500), &whole[16..500]);
        assert!(part(MAX_FILL_BYTES + 1..1 << 21).is_empty());
    }
}
