//! Guest data without stamps: bytes of the program, a repeated piece, or entries that look like those of a table of the
//! image. They are the same in every cluster of a write, so they prove no mapping. But they reach code that looks at
//! the bytes, in readers that guess formats and in writers that look for zeros and repeats.

use crate::disk::clusters::ClusterSize;

/// The number of bytes at the beginning of a built cluster that unstamped data cover at most; zeros follow. The build
/// copies them for each cluster.
pub const MAX_UNSTAMPED_BYTES: usize = 4 << 10;
/// The length of the longest piece in bytes.
pub const MAX_SHORT_PIECE_BYTES: usize = 64;

/// A short piece of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortPiece {
    bytes: [u8; MAX_SHORT_PIECE_BYTES],
    /// At least 1.
    length_bytes: u8,
}

impl ShortPiece {
    /// Returns the piece with the first bytes of `bytes`, or one zero if there are none.
    pub fn new(bytes: &[u8]) -> Self {
        let mut piece = [0; MAX_SHORT_PIECE_BYTES];
        piece.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let length_bytes = bytes.len().clamp(1, MAX_SHORT_PIECE_BYTES) as u8;
        Self { bytes: piece, length_bytes }
    }

    /// Returns the bytes of the piece.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length_bytes)).unwrap_or(&self.bytes)
    }
}

/// The encoding of an entry that names a cluster of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryForm {
    /// The length of an entry in bytes, 4 or 8.
    pub width_bytes: u8,
    /// The highest byte comes first.
    pub is_big_endian: bool,
    /// log2 of the unit in which an entry counts the bytes of the file.
    pub unit_bits: u8,
    /// Bits that are set beside the offset.
    pub flags: u64,
}

/// Guest data without stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnstampedData {
    /// A piece, then zeros.
    Once(ShortPiece),
    /// A piece, repeated.
    Repeated(ShortPiece),
    /// Entries of consecutive clusters of the file.
    Entries {
        /// The encoding.
        form: EntryForm,
        /// The cluster that the first entry names.
        first: u8,
        /// The size of these clusters.
        cluster_size: ClusterSize,
    },
}

impl UnstampedData {
    /// Returns the number of bytes from the beginning on that have a content, of `length_bytes`.
    pub fn covered_bytes(&self, length_bytes: usize) -> usize {
        match self {
            Self::Once(piece) => piece.bytes().len().min(length_bytes),
            Self::Repeated(_) | Self::Entries { .. } => length_bytes,
        }
    }

    /// Fills `into` with the bytes from `at` on, which counts from the beginning of the data.
    pub fn fill(&self, at: u64, into: &mut [u8]) {
        let ats = at..;
        match self {
            Self::Once(piece) => {
                let bytes = piece.bytes();
                let byte = |at: u64| bytes.get(usize::try_from(at).ok()?).copied();
                into.iter_mut().zip(ats).for_each(|(to, at)| *to = byte(at).unwrap_or(0));
            }
            Self::Repeated(piece) => {
                let bytes = piece.bytes();
                // A piece is not empty.
                let skipped = (at % bytes.len().max(1) as u64) as usize;
                let repeated = bytes.iter().cycle().skip(skipped);
                into.iter_mut().zip(repeated).for_each(|(to, from)| *to = *from);
            }
            Self::Entries { form, first, cluster_size } => {
                let width = u64::from(form.width_bytes.max(1));
                for (to, at) in into.iter_mut().zip(ats) {
                    let cluster = u64::from(*first).wrapping_add(at / width);
                    let entry = form.entry(cluster.wrapping_mul(cluster_size.bytes()));
                    *to = entry[(at % width % 8) as usize];
                }
            }
        }
    }
}

impl EntryForm {
    /// Returns the bytes of the entry for an offset in the file; those behind the entry have no meaning.
    fn entry(&self, offset: u64) -> [u8; 8] {
        let value = offset.checked_shr(self.unit_bits.into()).unwrap_or(0) | self.flags;
        match (self.is_big_endian, self.width_bytes) {
            (false, _) => value.to_le_bytes(),
            (true, 8..) => value.to_be_bytes(),
            // The lowest bytes of the number come last.
            (true, width) => (value << (64 - 8 * u32::from(width.max(1)))).to_be_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(data: UnstampedData, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0xEE; length];
        data.fill(at, &mut bytes);
        bytes
    }

    #[test]
    fn a_part_has_the_bytes_of_the_whole() {
        let piece = ShortPiece::new(b"abc");
        let form = EntryForm { width_bytes: 4, is_big_endian: true, unit_bits: 9, flags: 0 };
        let entries =
            UnstampedData::Entries { form, first: 3, cluster_size: ClusterSize::SMALLEST };
        for data in [UnstampedData::Once(piece), UnstampedData::Repeated(piece), entries] {
            let whole = content(data, 0, 100);
            for at in 0..90 {
                assert_eq!(content(data, at, 10), whole[at as usize..][..10]);
            }
        }
    }

    #[test]
    fn contents_are_the_documented_ones() {
        let piece = ShortPiece::new(b"abc");
        assert_eq!(content(UnstampedData::Once(piece), 0, 6), b"abc\0\0\0");
        assert_eq!(content(UnstampedData::Repeated(piece), 2, 6), b"cabcab");
        assert_eq!(ShortPiece::new(&[]).bytes(), [0]);
        assert_eq!(ShortPiece::new(&[7; 100]).bytes(), [7; MAX_SHORT_PIECE_BYTES]);
        let cluster_size = ClusterSize::from_bits(16).unwrap();
        let entries =
            |form| content(UnstampedData::Entries { form, first: 5, cluster_size }, 0, 16);
        let l2 = EntryForm { width_bytes: 8, is_big_endian: true, unit_bits: 0, flags: 1 << 63 };
        assert_eq!(entries(l2), [0x80, 0, 0, 0, 0, 5, 0, 0, 0x80, 0, 0, 0, 0, 6, 0, 0]);
        let little = EntryForm { width_bytes: 4, is_big_endian: false, unit_bits: 9, flags: 0 };
        assert_eq!(entries(little)[..8], [0x80, 2, 0, 0, 0, 3, 0, 0]);
        let big = EntryForm { is_big_endian: true, ..little };
        assert_eq!(entries(big)[..8], [0, 0, 2, 0x80, 0, 0, 3, 0]);
    }
}
