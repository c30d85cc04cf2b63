//! Compressed grains: a zlib stream (RFC 1950), perhaps behind a marker. The deflate stream in it is the payload of a
//! qcow2 cluster, which the process compresses once.

use std::sync::OnceLock;

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::formats::vmdk::constants::{GRAIN_MARKER_BYTES, SECTOR_BYTES};
use crate::images::content::{STAMP_BYTES, Shape, WriteNumber, stamp};
use crate::images::files::image::Image;
use crate::images::qcow2::payload::{Coding, PayloadKind, payload};
use crate::images::qcow2::{ImagePlan, PayloadFrame};

use super::encoding::marker_of_grain;
use super::form::GrainStorage;

/// The header of a zlib stream: deflate with a window of 32 KiB, the default level.
const STREAM_HEADER: [u8; 2] = [0x78, 0x9c];
/// The length of the checksum behind the stream.
const CHECKSUM_BYTES: usize = 4;
/// The bytes around the payload in a zlib stream.
const AROUND_BYTES: usize = STREAM_HEADER.len() + CHECKSUM_BYTES;

/// Returns the bytes around the payload of a grain. Grains begin with sectors.
pub fn frame(storage: GrainStorage) -> PayloadFrame {
    let marker = if storage == GrainStorage::Marked { GRAIN_MARKER_BYTES as usize } else { 0 };
    PayloadFrame { around_bytes: (marker + AROUND_BYTES) as u64, unit_bytes: SECTOR_BYTES }
}

/// Returns the kind that a grain gets for `wanted`. A reader refuses a stream that is longer than the grain, in its
/// content or, without a marker, in the file. It needs no bytes behind a stream.
pub fn fitting(storage: GrainStorage, plan: &ImagePlan, wanted: PayloadKind) -> PayloadKind {
    let geometry = &plan.geometry;
    let coding = match wanted.coding {
        Coding::Longer | Coding::Trailing | Coding::Largest => Coding::Usual,
        coding => coding,
    };
    let most_bytes = match storage {
        GrainStorage::Marked => 2 * geometry.cluster_size.bytes_usize(),
        GrainStorage::Plain | GrainStorage::Compressed => geometry.cluster_size.bytes_usize(),
    };
    let fits = |kind: &PayloadKind| {
        let length = payload(geometry, *kind).length_bytes();
        (1..=most_bytes - AROUND_BYTES).contains(&length)
    };
    let tried = [(wanted.shape, coding), (wanted.shape, Coding::Usual)];
    let mut tried = tried.into_iter().map(|(shape, coding)| PayloadKind { shape, coding });
    // A grain with zeros behind the stamp is always shorter.
    tried.find(fits).unwrap_or_default()
}

/// Writes the grain at `guest` to `at`.
pub fn write(
    image: &mut Image,
    storage: GrainStorage,
    plan: &ImagePlan,
    (guest, at): (GuestOffset, HostOffset),
    (kind, write): (PayloadKind, WriteNumber),
) {
    let stamp = stamp(guest, write);
    let payload = payload(&plan.geometry, kind);
    let ([before, stamp_part], behind) = payload.stamped(&stamp);
    let stream_bytes = payload.length_bytes() + AROUND_BYTES;
    let marker = marker_of_grain(
        guest.get() / SECTOR_BYTES,
        // A payload has at most some KiB.
        u32::try_from(stream_bytes).unwrap_or(u32::MAX),
    );
    let marker = if storage == GrainStorage::Marked { &marker[..] } else { &[] };
    image.write_parts(at, &[marker, &STREAM_HEADER, before, stamp_part], behind);
    let checksum = Adler::rest(kind.shape, plan.geometry.cluster_size).after(&stamp);
    let length = marker.len() + stream_bytes - CHECKSUM_BYTES;
    image.write(at + length as u64, &checksum.to_be_bytes());
}

/// The sums of Adler-32 (RFC 1950 §2.2) over some bytes, from two zeros on.
#[derive(Clone, Copy, Debug, Default)]
struct Adler {
    /// The sum of all bytes.
    sum: u64,
    /// The sum of `sum` behind each byte.
    sum_of_sums: u64,
    length: u64,
}

impl Adler {
    /// The modulus of both sums.
    const MODULUS: u64 = 65_521;

    fn of(bytes: &[u8]) -> Self {
        let mut sums = Self { length: bytes.len() as u64, ..Self::default() };
        for byte in bytes {
            sums.sum = (sums.sum + u64::from(*byte)) % Self::MODULUS;
            sums.sum_of_sums = (sums.sum_of_sums + sums.sum) % Self::MODULUS;
        }
        sums
    }

    /// Returns the sums over these bytes and `next`.
    fn and(self, next: Self) -> Self {
        let carried = next.length % Self::MODULUS * self.sum;
        Self {
            sum: (self.sum + next.sum) % Self::MODULUS,
            sum_of_sums: (self.sum_of_sums + carried + next.sum_of_sums) % Self::MODULUS,
            length: self.length + next.length,
        }
    }

    /// Returns the sums over the bytes behind the stamp of a grain. The process computes them once.
    fn rest(shape: Shape, grain: ClusterSize) -> Self {
        const SIZES: usize = (ClusterSize::MAX_BITS - ClusterSize::MIN_BITS + 1) as usize;
        static MADE: [[OnceLock<Adler>; SIZES]; Shape::ALL.len()] =
            [const { [const { OnceLock::new() }; SIZES] }; Shape::ALL.len()];
        let size = (grain.bits() - ClusterSize::MIN_BITS) as usize;
        *MADE[shape as usize][size].get_or_init(|| {
            let filling = shape.behind_stamp(grain);
            let zeros = grain.bytes() - (STAMP_BYTES + filling.len()) as u64;
            Self::of(filling).and(Self { length: zeros, ..Self::default() })
        })
    }

    /// Returns the checksum of `bytes`, followed by those of these sums.
    fn after(self, bytes: &[u8]) -> u32 {
        // The checksum begins with 1, as if a byte of 1 came first whose own sum does not count.
        let start = Self { sum: 1, ..Self::default() };
        let all = start.and(Self::of(bytes)).and(self);
        // Both are below 2^16.
        (all.sum_of_sums << 16 | all.sum) as u32
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::storage::Storage;
    use crate::images::qcow2::Builder;

    use super::*;

    #[test]
    fn the_checksum_is_adler_32() {
        assert_eq!(Adler::default().after(b"Wikipedia"), 0x11e6_0398);
        assert_eq!(Adler::of(b"pedia").after(b"Wiki"), 0x11e6_0398);
    }

    #[test]
    fn every_grain_inflates_to_its_content() {
        let (guest, write_number) = (GuestOffset::new(3 << 16), WriteNumber(7));
        for (bits, storage) in
            [(9, GrainStorage::Compressed), (9, GrainStorage::Marked), (16, GrainStorage::Marked)]
        {
            let mut plan = *Builder::new().plan();
            let grain = ClusterSize::from_bits(bits).unwrap();
            plan.geometry.cluster_size = grain;
            for shape in Shape::ALL {
                for coding in Coding::ALL {
                    let kind = fitting(storage, &plan, PayloadKind { shape, coding });
                    let mut image = Image::default();
                    let place = (guest, HostOffset::ZERO);
                    write(&mut image, storage, &plan, place, (kind, write_number));
                    image.seal(0);
                    let mut bytes = vec![0; image.length_bytes() as usize];
                    image.read_at(HostOffset::ZERO, &mut bytes).unwrap();
                    let payload_bytes = payload(&plan.geometry, kind).length_bytes();
                    let framed_bytes = frame(storage).around_bytes as usize;
                    assert_eq!(bytes.len(), payload_bytes + framed_bytes);
                    let marker = framed_bytes - AROUND_BYTES;
                    let inflated =
                        miniz_oxide::inflate::decompress_to_vec_zlib(&bytes[marker..]).unwrap();
                    let mut content = stamp(guest, write_number).to_vec();
                    content.extend(kind.shape.behind_stamp(grain));
                    content.resize(grain.bytes_usize(), 0);
                    assert!(inflated == content, "{kind:?}");
                    if storage == GrainStorage::Compressed {
                        assert!(bytes.len() <= grain.bytes_usize(), "{kind:?}");
                    }
                }
            }
        }
    }
}
