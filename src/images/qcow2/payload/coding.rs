//! The codings of compressed clusters, and their content.

use crate::disk::clusters::ClusterSize;
use crate::images::content::STAMP_BYTES;

/// The coding of a compressed cluster. Each value has a meaning for deflate (RFC 1951) and one for zstd (RFC 8878).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coding {
    /// Deflate: level 6 with windows of 32 KiB. Zstd: level 3 in one frame with its content size.
    #[default]
    Usual,
    /// Deflate: stored blocks only. Zstd: raw blocks only.
    Stored,
    /// Deflate: fixed codes. Zstd: raw and RLE blocks, which have no codes at all.
    Fixed,
    /// Deflate: level 1. Zstd: level 1 with the content size in the smallest field that holds it.
    Quick,
    /// Deflate: the highest level with dynamic codes. Zstd: level 19.
    Dynamic,
    /// Deflate: matches from as far back as possible. Zstd: no content size, and a window larger than the cluster.
    Window,
    /// Deflate: the stream continues past the cluster and is cut. Zstd: a second frame follows the whole cluster.
    Longer,
    /// Garbage after the end.
    Trailing,
    /// Deflate: blocks of every kind with empty ones between them. Zstd: several frames, among them an empty one and
    /// a skippable one.
    Pieces,
    /// Deflate: an empty last block. Zstd: a checksum after the content.
    Ended,
    /// The descriptor claims two clusters, its maximum. Nearly all of it lies after the end of the stream.
    Largest,
}

impl Coding {
    /// All codings, in the order of the encoding.
    pub const ALL: [Self; 11] = [
        Self::Usual,
        Self::Stored,
        Self::Fixed,
        Self::Quick,
        Self::Dynamic,
        Self::Window,
        Self::Longer,
        Self::Trailing,
        Self::Pieces,
        Self::Ended,
        Self::Largest,
    ];
}

/// The content of a cluster after the stamp.
pub(super) struct Content<'a> {
    pub(super) rest: &'a [u8],
    /// The number of bytes that the shape fills. Zeros follow, for which the fastest level is as good.
    pub(super) filled: usize,
}

impl Content<'_> {
    pub(super) fn parts(&self) -> (&[u8], &[u8]) {
        self.rest.split_at(self.filled)
    }

    pub(super) fn cluster_bytes(&self) -> usize {
        STAMP_BYTES + self.rest.len()
    }
}

/// Returns the largest length that a descriptor can hold for a payload that begins anywhere in a sector:
/// 2^(cluster_bits - 8) sectors.
pub(super) fn max_claimed_bytes(cluster_size: ClusterSize) -> usize {
    2 * cluster_size.bytes_usize() - 511
}
