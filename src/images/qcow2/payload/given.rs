//! Payloads made of the bytes of a program.

use crate::formats::qcow2::geometry::{Compression, Geometry};
use crate::images::content::{NOISE_BYTES, STAMP_BYTES};

use super::coding::max_claimed_bytes;
use super::{deflate, zstd};

/// A payload made of the bytes of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenPayload {
    /// The bytes of the payload.
    pub bytes: Vec<u8>,
    /// The offset of the stamp in them. A payload that was used unchanged has none.
    pub stamp_at: Option<usize>,
    /// The content of the cluster behind the stamp, if there is one. Zeros follow.
    pub content: Vec<u8>,
}

impl GivenPayload {
    /// Makes a payload that all readers must accept. It has all parts of `bytes` that mean something in a stream, and
    /// a stamp before them. Its content has at most 64 KiB, as that of all shapes.
    ///
    /// Returns `None` if the payload is longer than a descriptor can hold.
    pub fn valid(geometry: &Geometry, bytes: &[u8]) -> Option<Self> {
        let cluster_bytes = geometry.cluster_size.bytes_usize();
        let room = (cluster_bytes - STAMP_BYTES).min(NOISE_BYTES);
        let (bytes, stamp_at, content) = match geometry.compression {
            Compression::Deflate => deflate::given(bytes, room, cluster_bytes),
            Compression::Zstd => zstd::given(bytes, room, cluster_bytes),
        };
        let fits = bytes.len() <= max_claimed_bytes(geometry.cluster_size);
        fits.then_some(Self { bytes, stamp_at: Some(stamp_at), content })
    }

    /// Uses the bytes unchanged, as many as a descriptor can hold. A payload has at least one byte.
    pub fn unchanged(geometry: &Geometry, bytes: &[u8]) -> Self {
        let most = max_claimed_bytes(geometry.cluster_size);
        let bytes = bytes.get(..most).unwrap_or(bytes);
        let bytes = if bytes.is_empty() { vec![0] } else { bytes.to_vec() };
        Self { bytes, stamp_at: None, content: Vec::new() }
    }
}
