//! Stamps: sixteen bytes at the edges of each piece of guest data that say where it belongs and who
//! wrote it, so that data read back through a mapping proves the mapping.

use bytes::BufMut;

use crate::qcow2::units::GuestOffset;

/// The length of a stamp.
pub const STAMP_BYTES: usize = 16;

/// Which write of a program put data in place, from 1; 0 is no write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteNumber(pub u32);

/// The stamp that lies at `guest` in data of write `write`: the guest offset, the write number, and
/// the crc32 of both.
#[inline]
pub fn stamp(guest: GuestOffset, write: WriteNumber) -> [u8; STAMP_BYTES] {
    let mut bytes = [0; STAMP_BYTES];
    let mut out = bytes.as_mut_slice();
    out.put_u64(guest.get());
    out.put_u32(write.0);
    let checksum = crc32fast::hash(&bytes[..12]);
    bytes[12..].copy_from_slice(&checksum.to_be_bytes());
    bytes
}
