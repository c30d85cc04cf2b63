//! The log: a ring of sectors with entries. An entry has a header, descriptors, and sectors of data.

use std::ops::{ControlFlow, Range};

use bytes::Buf;

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Storage, Stored};
use crate::formats::entries::{Entries, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::vhdx::constants::{
    DATA_DESCRIPTOR, LOG_DESCRIPTOR_BYTES, LOG_ENTRY_SIGNATURE, LOG_HEADER_BYTES, LOG_SECTOR_BYTES,
    ZERO_DESCRIPTOR, log_entry,
};
use crate::formats::vhdx::header::{Checksum, ReplayLog};

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
        let length_bytes = log_entry::ENTRY_LENGTH.little_32(bytes);
        let sequence = log_entry::SEQUENCE_NUMBER.little(bytes);
        let descriptors = log_entry::DESCRIPTOR_COUNT.little_32(bytes);
        let descriptor_bytes = u64::from(descriptors) * LOG_DESCRIPTOR_BYTES as u64;
        let is_valid = bytes.starts_with(&LOG_ENTRY_SIGNATURE)
            && bytes.get(log_entry::LOG_GUID.at..).is_some_and(|rest| rest.starts_with(&log.guid))
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

/// The feature of an image whose log has an entry, with the advice of QEMU.
pub(super) const LOG_TO_REPLAY: &str =
    "log that has to be replayed ('qemu-img check -r all' replays it)";

/// Checks that no entry of the log has to be replayed, as QEMU does (`block/vhdx-log.c`, `vhdx_log_search`). Holes of
/// the log are not read. An entry with a wrong checksum does not count, and QEMU does not look for other entries in its
/// bytes. If such an entry is as long as the log, QEMU 10.0.2 loops for ever, while this function treats the log as
/// empty.
///
/// # Errors
/// The log has an entry, an entry has an invalid descriptor, or a read failed.
pub(super) fn check_log<S: Storage + ?Sized>(
    image: &S,
    log: &ReplayLog,
    scratch: &mut [u8],
) -> Result<(), MapError> {
    let length = u64::from(log.length_bytes);
    let log_end = log.offset + length;
    let mut stored = Stored { stored: false, end: HostOffset::ZERO };
    let mut at = 0u64;
    while at < length {
        let sector = log.offset + at;
        if stored.end <= sector {
            stored = image.stored(sector, log_end)?;
        }
        if !stored.stored {
            let skipped = stored.end.saturating_distance_from(sector) / LOG_SECTOR_BYTES;
            at = at.saturating_add(skipped.saturating_mul(LOG_SECTOR_BYTES));
            // The sector at the edge of the hole.
            if skipped > 0 {
                continue;
            }
        }
        let mut header = [0; LOG_HEADER_BYTES];
        image.read_at(sector, &mut header)?;
        let read_bytes = match ReplayEntry::parse(&header, log) {
            None => LOG_SECTOR_BYTES,
            Some(entry) => {
                let ring = Ring { image, log, at };
                ring.check_descriptors(&entry, scratch)?;
                if ring.checksum(&header, entry.read_bytes(), scratch)?.is_in(&header) {
                    return Err(MapError::Unsupported(LOG_TO_REPLAY));
                }
                entry.read_bytes()
            }
        };
        at = at.saturating_add(read_bytes);
    }
    Ok(())
}

/// An entry of the log. It begins `at` bytes after the beginning of the log. At the end of the log, it continues at the
/// beginning.
struct Ring<'s, S: Storage + ?Sized> {
    image: &'s S,
    log: &'s ReplayLog,
    at: u64,
}

impl<S: Storage + ?Sized> Ring<'_, S> {
    /// Returns the two places of the bytes of the entry in `bytes`, the second one at the beginning of the log.
    fn places(&self, bytes: Range<u64>) -> [Range<HostOffset>; 2] {
        let length = u64::from(self.log.length_bytes);
        let host = |at: u64| self.log.offset + at;
        let [start, end] = [bytes.start, bytes.end].map(|byte| self.at.saturating_add(byte));
        let wrapped = [start, end].map(|at| at.saturating_sub(length));
        [host(start.min(length))..host(end.min(length)), host(wrapped[0])..host(wrapped[1])]
    }

    /// Checks the descriptors.
    fn check_descriptors(&self, entry: &ReplayEntry, scratch: &mut [u8]) -> Result<(), MapError> {
        const BYTES: u64 = LOG_DESCRIPTOR_BYTES as u64;
        let first = LOG_HEADER_BYTES as u64;
        let end = first.saturating_add(u64::from(entry.descriptors).saturating_mul(BYTES));
        let mut is_valid = true;
        for place in self.places(first..end) {
            let count = place.end.saturating_distance_from(place.start) / BYTES;
            let _ = each_entries(self.image, place.start, 0..count, scratch, |piece| -> Flow {
                is_valid &= match piece {
                    Entries::Read(_, descriptors) => {
                        descriptors.iter().all(|bytes| entry.is_valid_descriptor(bytes))
                    }
                    Entries::Zeros(range) => range.is_empty(),
                };
                Ok(if is_valid { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
            })?;
        }
        match is_valid {
            true => Ok(()),
            false => Err(MapError::NotImage {
                format: "vhdx",
                what: "a descriptor in the log is not valid",
            }),
        }
    }

    /// Returns the checksum of the entry, which has `length_bytes`, and whose `header` has been read.
    fn checksum(
        &self,
        header: &[u8; LOG_HEADER_BYTES],
        length_bytes: u64,
        scratch: &mut [u8],
    ) -> Result<Checksum, StorageError> {
        let mut checksum = Checksum::of_structure(header);
        for place in self.places(header.len() as u64..length_bytes) {
            checksum.append_stored(self.image, place, scratch)?;
        }
        Ok(checksum)
    }
}
