//! Searches the log for entries that have to be replayed, as QEMU does (`block/vhdx-log.c`, `vhdx_log_search`). Holes
//! of the log are not read.

use std::ops::{ControlFlow, Range};

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Storage, Stored};
use crate::formats::entries::{Entries, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::vhdx::checksum::Checksum;
use crate::formats::vhdx::constants::{LOG_DESCRIPTOR_BYTES, LOG_HEADER_BYTES, LOG_SECTOR_BYTES};
use crate::formats::vhdx::log::{ReplayEntry, ReplayLog};

/// Checks that no entry of the log has to be replayed. An entry with a wrong checksum is none, and QEMU does not look
/// for others in it. QEMU 10.0.2 does not end if such an entry is as long as the log; here, the log is empty then.
///
/// # Errors
/// There is an entry, or one with an invalid descriptor; or a read failed.
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
                    return Err(MapError::Unsupported("log that has to be replayed"));
                }
                entry.read_bytes()
            }
        };
        at = at.saturating_add(read_bytes);
    }
    Ok(())
}

/// An entry of the log. It begins `at` bytes after the beginning of the log, and may continue there.
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
