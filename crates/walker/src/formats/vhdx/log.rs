//! The log: a ring of sectors with entries. An entry has a header, descriptors, and sectors of data.

use bytes::Buf;

use super::constants::{
    DATA_DESCRIPTOR, Guid, LOG_DESCRIPTOR_BYTES, LOG_ENTRY_SIGNATURE, LOG_HEADER_BYTES,
    LOG_SECTOR_BYTES, ZERO_DESCRIPTOR,
};
use crate::disk::offsets::HostOffset;

/// The place of the log, and the identity of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayLog {
    /// The host offset, a multiple of 1 MiB.
    pub offset: HostOffset,
    /// The length in bytes, a multiple of 1 MiB.
    pub length_bytes: u32,
    /// The identity of the entries. An entry with another one is left over from earlier times.
    pub guid: Guid,
}

/// The header of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayEntry {
    /// The length that the header states, in bytes: a multiple of a sector.
    pub length_bytes: u32,
    /// The number of the entry. Its descriptors have the same.
    pub sequence: u64,
    /// The number of descriptors.
    pub descriptors: u32,
}

impl ReplayEntry {
    /// Parses the header of an entry of `log`. Returns `None` if QEMU ignores the sector (`block/vhdx-log.c`,
    /// `vhdx_log_hdr_is_valid`).
    pub fn parse(bytes: &[u8; LOG_HEADER_BYTES], log: &ReplayLog) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&LOG_ENTRY_SIGNATURE)?;
        // Checksum.
        rest.advance(4);
        let length_bytes = rest.get_u32_le();
        // The offset of the first entry that is to be replayed.
        rest.advance(4);
        let (sequence, descriptors) = (rest.get_u64_le(), rest.get_u32_le());
        // Reserved.
        rest.advance(4);
        let descriptor_bytes = u64::from(descriptors) * LOG_DESCRIPTOR_BYTES as u64;
        let is_valid = rest.starts_with(&log.guid)
            && length_bytes <= log.length_bytes
            && u64::from(length_bytes).is_multiple_of(LOG_SECTOR_BYTES)
            && sequence != 0
            && descriptor_bytes <= length_bytes.into();
        is_valid.then_some(Self { length_bytes, sequence, descriptors })
    }

    /// Returns the length of the entry as QEMU reads it: at least the sectors with the header and the descriptors.
    pub fn read_bytes(&self) -> u64 {
        let descriptors = u64::from(self.descriptors) * LOG_DESCRIPTOR_BYTES as u64;
        let first = (LOG_HEADER_BYTES as u64 + descriptors).next_multiple_of(LOG_SECTOR_BYTES);
        first.max(self.length_bytes.into())
    }

    /// Reports whether a descriptor of this entry is valid. QEMU refuses an image with one that is not
    /// (`block/vhdx-log.c`, `vhdx_log_desc_is_valid`).
    pub fn is_valid_descriptor(&self, bytes: &[u8; LOG_DESCRIPTOR_BYTES]) -> bool {
        let mut rest = bytes.as_slice();
        // Signature, and the last bytes of a data sector.
        rest.advance(8);
        let (length, offset, sequence) = (rest.get_u64_le(), rest.get_u64_le(), rest.get_u64_le());
        let is_known = bytes.starts_with(&DATA_DESCRIPTOR)
            || bytes.starts_with(&ZERO_DESCRIPTOR) && length.is_multiple_of(LOG_SECTOR_BYTES);
        is_known && offset.is_multiple_of(LOG_SECTOR_BYTES) && sequence == self.sequence
    }
}
