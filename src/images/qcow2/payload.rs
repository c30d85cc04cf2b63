//! Compressed payloads, each compressed once in a process. A run only patches a stamp into them.
//!
//! A payload begins with a block that stores the stamp as it is; behind it lies what was compressed
//! ahead of time, in one of many codings.

mod coding;
mod deflate;
mod zstd;

use std::sync::OnceLock;

use crate::disk::limits::MAX_PAYLOAD_BYTES;
use crate::formats::qcow2::geometry::{Compression, Geometry};
use crate::formats::qcow2::units::ClusterSize;
use crate::images::content::{STAMP_BYTES, Shape};

#[cfg(test)]
mod tests;

use coding::Content;

pub use coding::Coding;

/// What lies behind a stream that has ended.
const TRAILING: [u8; 77] = [0xA5; 77];

/// A compressed cluster with room for a stamp.
#[derive(Debug)]
pub struct Payload {
    bytes: Box<[u8]>,
    stamp_at: usize,
    claimed_bytes: usize,
}

impl Payload {
    /// The length that the descriptor says; never more than it can.
    pub fn claimed_bytes(&self) -> usize {
        self.claimed_bytes
    }

    /// The length of what is written; behind it, nothing is.
    pub fn length_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The payload with `stamp` in it: what lies before the stamp, the stamp, and what lies behind.
    pub fn stamped<'s>(
        &'static self,
        stamp: &'s [u8; STAMP_BYTES],
    ) -> ([&'s [u8]; 2], &'static [u8]) {
        let (before, rest) = self.bytes.split_at(self.stamp_at);
        ([before, stamp], &rest[STAMP_BYTES..])
    }

    fn new(cluster_size: ClusterSize, compression: Compression, kind: Kind) -> Self {
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

    /// One that is too long is empty.
    fn fits(&self) -> bool {
        !self.bytes.is_empty()
    }
}

/// What a descriptor can say of a payload that begins anywhere in a sector: 2^(cluster_bits - 8)
/// sectors.
fn max_claimed_bytes(cluster_size: ClusterSize) -> usize {
    2 * cluster_size.bytes_usize() - 511
}

/// What a payload holds, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    /// What it holds.
    pub shape: Shape,
    /// How it is coded.
    pub coding: Coding,
}

/// Returns the payload for a cluster of `geometry`, and its kind. If the payload of `wanted` is too long, it returns the
/// same shape in the usual coding; if that is too long too, the largest shape that always fits.
pub fn fitting(geometry: &Geometry, wanted: Kind) -> (Kind, &'static Payload) {
    let usual = Kind { coding: Coding::Usual, ..wanted };
    let last = Kind { shape: Shape::Most, coding: Coding::Usual };
    let made = |kind| (kind, payload(geometry, kind));
    let found = [wanted, usual].into_iter().map(made).find(|(_, payload)| payload.fits());
    found.unwrap_or_else(|| made(last))
}

/// Returns the payload of a kind; it is empty if it would be too long. The first call makes it, and the process keeps it:
/// at most [`MAX_PAYLOAD_BYTES`] for each kind, cluster size and compression.
pub fn payload(geometry: &Geometry, kind: Kind) -> &'static Payload {
    static MADE: [OnceLock<Payload>; PAYLOADS_OF_CLUSTER * CLUSTER_SIZES * 2] =
        [const { OnceLock::new() }; PAYLOADS_OF_CLUSTER * CLUSTER_SIZES * 2];
    let size = (geometry.cluster_size.bits() - ClusterSize::MIN_BITS) as usize;
    let compression = usize::from(geometry.compression == Compression::Zstd);
    let of_size = (size * 2 + compression) * Shape::ALL.len() + kind.shape as usize;
    MADE[of_size * Coding::ALL.len() + kind.coding as usize]
        .get_or_init(|| Payload::new(geometry.cluster_size, geometry.compression, kind))
}

const PAYLOADS_OF_CLUSTER: usize = Shape::ALL.len() * Coding::ALL.len();

const CLUSTER_SIZES: usize = (ClusterSize::MAX_BITS - ClusterSize::MIN_BITS + 1) as usize;
