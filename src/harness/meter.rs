//! Counts the reads of a chain's files, and makes one of them fail.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;

/// The error kind of a read that fails on purpose.
pub const INJECTED: ErrorKind = ErrorKind::Other;

/// A counter of reads and bytes that the files of a chain share. It makes one read fail.
///
/// Threads of an engine that read at the same time may lose counts, and two reads may then have the same number. Each
/// number is still met, because a count never grows by more than one.
#[derive(Debug)]
pub struct Meter {
    reads: AtomicU64,
    bytes: AtomicU64,
    fail_at: AtomicU64,
}

impl Meter {
    /// Replaces a meter on which an engine still counts, because it keeps files of an earlier image.
    pub fn renew(meter: &mut Arc<Self>) {
        if Arc::strong_count(meter) > 1 {
            *meter = Arc::default();
        }
    }

    /// Resets the counts to 0, and makes the read with the number `fail_at` fail. 0 is the next read.
    pub fn restart(&self, fail_at: u64) {
        self.reads.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
        self.fail_at.store(fail_at, Relaxed);
    }

    /// Returns the number of reads.
    pub fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// Returns the number of bytes that the reads returned.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Counts a read, and fails if it is the one that must fail.
    #[inline]
    pub(super) fn count_read(&self, offset: HostOffset) -> Result<(), StorageError> {
        let read = self.reads.load(Relaxed);
        // An exchange would cost more than the rest of most reads.
        self.reads.store(read.wrapping_add(1), Relaxed);
        match read == self.fail_at.load(Relaxed) {
            true => Err(StorageError { offset, kind: INJECTED }),
            false => Ok(()),
        }
    }

    /// Counts bytes that a read returned.
    #[inline]
    pub(super) fn count_bytes(&self, bytes: usize) {
        self.bytes.store(self.bytes().wrapping_add(bytes as u64), Relaxed);
    }
}

impl Default for Meter {
    /// Creates a meter that counts from 0 and lets no read fail.
    fn default() -> Self {
        let (reads, bytes) = Default::default();
        Self { reads, bytes, fail_at: AtomicU64::new(u64::MAX) }
    }
}
