//! Compressed payloads, made once: the loop patches a stamp into them and never compresses.
//!
//! A payload is a block that stores the stamp as it is, followed by blocks that were compressed
//! ahead of time: for deflate a stored block (RFC 1951 §3.2.4), for zstd a raw block of a frame with
//! its content size (RFC 8878 §3.1.1).

use miniz_oxide::deflate::core::{
    CompressorOxide, TDEFLFlush, compress_to_output, create_comp_flags_from_zip_params,
};

use crate::content::{SHAPED_BYTES, STAMP_BYTES, Shape};
use crate::qcow2::header::{Compression, Geometry};
use crate::qcow2::units::ClusterSize;

/// The payloads of one process, by cluster size, compression and shape; each is made when it is
/// first asked for.
#[derive(Debug, Default)]
pub struct Payloads {
    made: Vec<Option<Payload>>,
}

/// A compressed cluster with room for a stamp.
#[derive(Clone, Debug)]
pub struct Payload {
    bytes: Vec<u8>,
    stamp_at: usize,
}

impl Payload {
    /// The length of the payload; never more than a cluster.
    pub fn length_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Writes the payload, with `stamp` in it, to `out`, which is as long.
    pub fn write(&self, out: &mut [u8], stamp: &[u8; STAMP_BYTES]) {
        out.copy_from_slice(&self.bytes);
        out[self.stamp_at..self.stamp_at + STAMP_BYTES].copy_from_slice(stamp);
    }

    fn new(cluster_size: ClusterSize, compression: Compression, shape: Shape) -> Self {
        let mut rest = vec![0; cluster_size.bytes_usize() - STAMP_BYTES];
        shape.fill(&mut rest);
        match compression {
            Compression::Deflate => Self::deflate(&rest),
            Compression::Zstd => Self::zstd(cluster_size, &rest),
        }
    }

    fn deflate(rest: &[u8]) -> Self {
        // Not the last block, stored; its length, and the length's complement.
        let length = (STAMP_BYTES as u16).to_le_bytes();
        let mut bytes = vec![0, length[0], length[1], !length[0], !length[1]];
        let stamp_at = bytes.len();
        bytes.extend([0; STAMP_BYTES]);
        // Behind what a shape holds there are only zeros, for which the fastest level is as good.
        let (content, zeros) = rest.split_at(rest.len().min(SHAPED_BYTES));
        let mut stream = CompressorOxide::new(create_comp_flags_from_zip_params(6, -15, 0));
        deflate_part(&mut stream, content, TDEFLFlush::Full, &mut bytes);
        let mut stream = CompressorOxide::new(create_comp_flags_from_zip_params(1, -15, 0));
        deflate_part(&mut stream, zeros, TDEFLFlush::Finish, &mut bytes);
        Self { bytes, stamp_at }
    }

    fn zstd(cluster_size: ClusterSize, rest: &[u8]) -> Self {
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(rest.len()));
        // Into a buffer of the size that zstd asks for, this cannot fail.
        let _ = zstd_safe::compress(&mut frame, rest, 3);
        let mut bytes = vec![0x28, 0xB5, 0x2F, 0xFD];
        // One segment, content size in eight bytes, no checksum, no dictionary.
        bytes.push(0b1110_0000);
        bytes.extend(cluster_size.bytes().to_le_bytes());
        // A raw block, not the last.
        let raw_block = (STAMP_BYTES as u32) << 3;
        bytes.extend(&raw_block.to_le_bytes()[..3]);
        let stamp_at = bytes.len();
        bytes.extend([0; STAMP_BYTES]);
        bytes.extend(&frame[zstd_header_bytes(&frame)..]);
        Self { bytes, stamp_at }
    }
}

/// Appends `content` as blocks that end on a byte.
fn deflate_part(
    stream: &mut CompressorOxide,
    content: &[u8],
    flush: TDEFLFlush,
    out: &mut Vec<u8>,
) {
    // The callback takes everything, so that the stream cannot stop.
    compress_to_output(stream, content, flush, |piece| {
        out.extend_from_slice(piece);
        true
    });
}

/// The length of a zstd frame's header (RFC 8878 §3.1.1.1).
fn zstd_header_bytes(frame: &[u8]) -> usize {
    let descriptor = frame.get(4).copied().unwrap_or(0);
    let single_segment = descriptor & 0b10_0000 != 0;
    let window = usize::from(!single_segment);
    let content_size = match descriptor >> 6 {
        0 => usize::from(single_segment),
        flag => 1 << flag,
    };
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 0b11)];
    5 + window + dictionary + content_size
}

impl Payloads {
    /// The payload for a cluster of `geometry`, made now where it was not made before.
    pub fn get(&mut self, geometry: &Geometry, shape: Shape) -> &Payload {
        if self.made.is_empty() {
            self.made.resize(CLUSTER_SIZES * 2 * Shape::ALL.len(), None);
        }
        self.made[Self::index(geometry, shape)]
            .get_or_insert_with(|| Payload::new(geometry.cluster_size, geometry.compression, shape))
    }

    /// A payload that [`Payloads::get`] has made.
    pub fn made(&self, geometry: &Geometry, shape: Shape) -> &Payload {
        self.made[Self::index(geometry, shape)].as_ref().expect("made when it was placed")
    }

    fn index(geometry: &Geometry, shape: Shape) -> usize {
        let size = (geometry.cluster_size.bits() - ClusterSize::MIN_BITS) as usize;
        let compression = usize::from(geometry.compression == Compression::Zstd);
        (size * 2 + compression) * Shape::ALL.len() + shape as usize
    }
}

const CLUSTER_SIZES: usize = (ClusterSize::MAX_BITS - ClusterSize::MIN_BITS + 1) as usize;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qcow2::header::Version;

    #[test]
    fn every_payload_inflates_to_its_cluster() {
        let mut payloads = Payloads::default();
        for bits in 9..=21 {
            let cluster_size = ClusterSize::from_bits(bits).unwrap();
            for compression in [Compression::Deflate, Compression::Zstd] {
                let geometry = Geometry {
                    version: Version::V3,
                    cluster_size,
                    refcount_order: 4,
                    extended_l2: false,
                    compression,
                    data_file: false,
                };
                for shape in Shape::ALL {
                    let payload = payloads.get(&geometry, shape);
                    assert!(payload.length_bytes() <= cluster_size.bytes_usize());
                    let mut bytes = vec![0; payload.length_bytes()];
                    payload.write(&mut bytes, &[7; STAMP_BYTES]);
                    let inflated = match compression {
                        Compression::Deflate => {
                            miniz_oxide::inflate::decompress_to_vec(&bytes).unwrap()
                        }
                        Compression::Zstd => {
                            let mut out = Vec::with_capacity(cluster_size.bytes_usize());
                            zstd_safe::decompress(&mut out, &bytes).unwrap();
                            out
                        }
                    };
                    let mut expected = vec![7; cluster_size.bytes_usize()];
                    shape.fill(&mut expected[STAMP_BYTES..]);
                    assert!(inflated == expected, "{bits} {compression:?} {shape:?}");
                }
            }
        }
    }
}
