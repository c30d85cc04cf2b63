//! How compressed clusters are coded, and what they contain.

use crate::images::content::STAMP_BYTES;

/// How a compressed cluster is coded: something for each of deflate (RFC 1951) and zstd (RFC 8878).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coding {
    /// Level 6, 32 KiB windows; level 3, one frame with its content size.
    #[default]
    Usual,
    /// Stored blocks only; raw blocks only.
    Stored,
    /// Fixed codes; raw and RLE blocks, which have no codes at all.
    Fixed,
    /// Level 1; the content size in the smallest field that holds it.
    Quick,
    /// The highest level, dynamic codes; level 19.
    Dynamic,
    /// Matches as far back as they can be; no content size, and a window larger than the cluster.
    Window,
    /// The stream goes on past the cluster, and is cut; a second frame follows the whole cluster.
    Longer,
    /// Bytes behind the end that belong to nothing.
    Trailing,
    /// Blocks of every kind with empty ones between them; several frames, with an empty one and one
    /// that is skipped.
    Pieces,
    /// An empty last block; a checksum behind the content.
    Ended,
    /// The descriptor says as much as it can: two clusters, nearly all behind the end.
    Largest,
}

impl Coding {
    /// Every coding, in the order of the encoding.
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

/// What lies behind the stamp of a cluster.
pub(super) struct Content<'a> {
    pub(super) rest: &'a [u8],
    /// How much of it the shape fills. Behind that there are only zeros, for which the fastest level is
    /// as good.
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
