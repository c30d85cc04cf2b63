//! A storage that counts what is read from it, and can fail.

use std::cell::Cell;
use std::io::ErrorKind;

use crate::error::StorageError;
use crate::qcow2::units::HostOffset;
use crate::storage::{Data, Storage};

/// The error of a read that was made to fail.
pub const INJECTED: ErrorKind = ErrorKind::Other;

/// Counts the reads and bytes of `inner`, and makes one read fail.
#[derive(Debug)]
pub struct Metered<'s, S: Storage + ?Sized> {
    inner: &'s S,
    reads: Cell<u64>,
    bytes: Cell<u64>,
    fail_at: Cell<u64>,
}

impl<'s, S: Storage + ?Sized> Metered<'s, S> {
    /// Counts from 0, fails never.
    pub fn new(inner: &'s S) -> Self {
        Self { inner, reads: Cell::new(0), bytes: Cell::new(0), fail_at: Cell::new(u64::MAX) }
    }

    /// Counts from 0 again, and makes the read with this number fail (0 is the next one).
    pub fn restart(&self, fail_at: u64) {
        self.reads.set(0);
        self.bytes.set(0);
        self.fail_at.set(fail_at);
    }

    /// How many reads there were.
    pub fn reads(&self) -> u64 {
        self.reads.get()
    }

    /// How many bytes they returned.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    fn count(&self, offset: HostOffset) -> Result<(), StorageError> {
        let read = self.reads.get();
        self.reads.set(read + 1);
        if read == self.fail_at.get() {
            return Err(StorageError { offset: offset.get(), kind: INJECTED });
        }
        Ok(())
    }
}

impl<S: Storage + ?Sized> Storage for Metered<'_, S> {
    fn length_bytes(&self) -> u64 {
        self.inner.length_bytes()
    }

    #[inline]
    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        self.count(offset)?;
        self.bytes.set(self.bytes.get() + into.len() as u64);
        self.inner.read_at(offset, into)
    }

    #[inline]
    fn next_data<'a>(
        &'a self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        self.count(from)?;
        let data = self.inner.next_data(from, until, scratch)?;
        let length = data.map_or(0, |data| data.bytes.len() as u64);
        self.bytes.set(self.bytes.get() + length);
        Ok(data)
    }
}
