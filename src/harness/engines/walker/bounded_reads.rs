//! A storage of which a reader reads only so much: it bounds the work on an image that names its tables again and
//! again.

use std::cell::Cell;
use std::io::ErrorKind;

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Data, Storage, Stored};

/// The number of bytes that a question counts for, beside the bytes that it returns.
const QUESTION_BYTES: u64 = 64;

/// A storage whose reads fail when a number of bytes has been read.
#[derive(Debug)]
pub(crate) struct BoundedReads<'s, S: Storage + ?Sized> {
    storage: &'s S,
    left_bytes: Cell<u64>,
    is_exhausted: Cell<bool>,
}

impl<'s, S: Storage + ?Sized> BoundedReads<'s, S> {
    /// Creates a storage of which `most_bytes` can be read.
    pub(crate) fn new(storage: &'s S, most_bytes: u64) -> Self {
        Self { storage, left_bytes: Cell::new(most_bytes), is_exhausted: Cell::new(false) }
    }

    /// Reports whether a read has failed because of the bound.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.is_exhausted.get()
    }

    fn count(&self, offset: HostOffset, bytes: usize) -> Result<(), StorageError> {
        let used = QUESTION_BYTES.saturating_add(bytes as u64);
        match self.left_bytes.get().checked_sub(used) {
            Some(left) => {
                self.left_bytes.set(left);
                Ok(())
            }
            None => {
                self.is_exhausted.set(true);
                Err(StorageError { offset, kind: ErrorKind::QuotaExceeded })
            }
        }
    }
}

impl<S: Storage + ?Sized> Storage for BoundedReads<'_, S> {
    fn length_bytes(&self) -> u64 {
        self.storage.length_bytes()
    }

    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        self.count(offset, into.len())?;
        self.storage.read_at(offset, into)
    }

    fn stored(&self, from: HostOffset, until: HostOffset) -> Result<Stored, StorageError> {
        self.count(from, 0)?;
        self.storage.stored(from, until)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.storage.allocated_bytes()
    }

    fn next_data<'a>(
        &'a self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        let data = self.storage.next_data(from, until, scratch)?;
        self.count(from, data.map_or(0, |data| data.bytes.len()))?;
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_fail_behind_the_bound() {
        let bytes = [7; 256];
        let bounded = BoundedReads::new(&bytes[..], 300);
        let read = |length: usize| bounded.read_at(HostOffset::ZERO, &mut vec![0; length]).is_ok();
        assert!(read(128) && !bounded.is_exhausted());
        let mut scratch = [0; 32];
        let (from, until) = (HostOffset::ZERO, HostOffset::new(32));
        assert!(bounded.next_data(from, until, &mut scratch).unwrap().is_some());
        assert!(!read(0) && bounded.is_exhausted());
        assert!(bounded.next_data(from, until, &mut scratch).is_err());
        assert!(bounded.stored(from, until).is_err());
    }
}
