//! Compressed payloads. The process compresses each one once; a run only patches a stamp into it.
//!
//! A payload begins with a block that stores the stamp uncompressed. The data after it were compressed ahead of time,
//! in one of many codings.

mod coding;
mod deflate;
mod deflate_from_bytes;
#[cfg(test)]
mod tests;
mod zstd;

pub use coding::Coding;

use std::sync::OnceLock;

use crate::base::limits::MAX_PAYLOAD_BYTES;
use crate::disk::clusters::ClusterSize;
use crate::formats::qcow2::constants::MAX_CLUSTER_BITS;
use crate::formats::qcow2::geometry::{Compression, Geometry};
use crate::images::content::{NOISE_BYTES, STAMP_BYTES, Shape};

use coding::{Content, max_claimed_bytes};

/// The garbage after the end of a stream.
const TRAILING: [u8; 77] = [0xA5; 77];

/// A compressed cluster with room for a stamp.
#[derive(Debug)]
pub struct Payload {
    bytes: Box<[u8]>,
    stamp_at: usize,
    claimed_bytes: usize,
}

impl Payload {
    /// Returns the length that the descriptor claims, at most the largest that it can hold.
    pub fn claimed_bytes(&self) -> usize {
        self.claimed_bytes
    }

    /// Returns the length of the written bytes. Nothing is written after them.
    pub fn length_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the payload with `stamp` in it: the bytes before the stamp, the stamp, and the bytes after it.
    pub fn stamped<'s>(
        &'static self,
        stamp: &'s [u8; STAMP_BYTES],
    ) -> ([&'s [u8]; 2], &'static [u8]) {
        let (before, rest) = self.bytes.split_at(self.stamp_at);
        ([before, stamp], &rest[STAMP_BYTES..])
    }

    fn new(cluster_size: ClusterSize, compression: Compression, kind: PayloadKind) -> Self {
        let mut rest = vec![0; cluster_size.bytes_usize() - STAMP_BYTES];
        let filling = kind.shape.behind_stamp(cluster_size);
        rest[..filling.len()].copy_from_slice(filling);
        let content = Content { filled: filling.len(), rest: &rest };
        let (mut bytes, stamp_at) = match compression {
            Compression::Deflate => deflate::payload(&content, kind.coding),
            Compression::Zstd => zstd::payload(&content, kind.coding),
        };
        if kind.coding == Coding::Trailing {
            bytes.extend(TRAILING);
        }
        let most = max_claimed_bytes(cluster_size);
        let fits = bytes.len() <= most.min(MAX_PAYLOAD_BYTES);
        if !fits {
            bytes = Vec::new();
        }
        let claimed_bytes = if kind.coding == Coding::Largest { most } else { bytes.len() };
        Self { bytes: bytes.into(), stamp_at, claimed_bytes }
    }

    /// Reports whether the payload fits. A payload that does not is empty.
    fn fits(&self) -> bool {
        !self.bytes.is_empty()
    }
}

/// The content and the coding of a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayloadKind {
    /// The content.
    pub shape: Shape,
    /// The coding.
    pub coding: Coding,
}

/// Returns the payload for a cluster of `geometry`, and its kind. If the payload of `wanted` is too long, this
/// returns the same shape in the usual coding. If that is too long, too, it returns the largest shape that always
/// fits.
pub fn fitting(geometry: &Geometry, wanted: PayloadKind) -> (PayloadKind, &'static Payload) {
    let usual = PayloadKind { coding: Coding::Usual, ..wanted };
    let last = PayloadKind { shape: Shape::Most, coding: Coding::Usual };
    let made = |kind| (kind, payload(geometry, kind));
    let found = [wanted, usual].into_iter().map(made).find(|(_, payload)| payload.fits());
    found.unwrap_or_else(|| made(last))
}

/// Returns the payload of a kind; it is empty if it would be too long. The first call compresses it, and the process
/// keeps it: at most `MAX_PAYLOAD_BYTES` for each kind, cluster size and compression.
pub fn payload(geometry: &Geometry, kind: PayloadKind) -> &'static Payload {
    static MADE: [OnceLock<Payload>; PAYLOADS_OF_CLUSTER * CLUSTER_SIZES * 2] =
        [const { OnceLock::new() }; PAYLOADS_OF_CLUSTER * CLUSTER_SIZES * 2];
    let size = (geometry.cluster_size.bits() - ClusterSize::MIN_BITS) as usize;
    let compression = usize::from(geometry.compression == Compression::Zstd);
    let of_size = (size * 2 + compression) * Shape::ALL.len() + kind.shape as usize;
    MADE[of_size * Coding::ALL.len() + kind.coding as usize]
        .get_or_init(|| Payload::new(geometry.cluster_size, geometry.compression, kind))
}

const PAYLOADS_OF_CLUSTER: usize = Shape::ALL.len() * Coding::ALL.len();

const CLUSTER_SIZES: usize = (MAX_CLUSTER_BITS - ClusterSize::MIN_BITS + 1) as usize;

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
