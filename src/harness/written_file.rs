//! A file in memory that an engine writes.

use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Data, GRAIN_BYTES, Storage, read_widened};
use crate::images::image::Image;
use crate::programs::CutKind;

use super::write_log::WriteLog;

/// The longest file, as in QEMU.
const MAX_WRITTEN_LENGTH_BYTES: u64 = i64::MAX as u64;
/// The most bytes that an engine may write to a file; bytes that it writes twice count twice. The requests of a program
/// need far less, and an engine that writes without end does not take all memory.
const MAX_BYTES_OF_WRITES: u64 = 256 << 20;

/// A file that an engine writes.
#[derive(Debug, Default)]
pub(super) struct WrittenFile(Mutex<WrittenState>);

#[derive(Debug, Default)]
struct WrittenState {
    image: Image,
    /// The number of bytes that were written, and written again.
    written_bytes: u64,
    /// The writes, if a cut is to come.
    log: Option<WriteLog>,
}

impl WrittenFile {
    /// Creates a file with the bytes of `image`. Keeps its writes if there are cuts.
    pub(super) fn new(image: Image, has_cuts: bool) -> Self {
        let log = has_cuts.then(WriteLog::default);
        Self(Mutex::new(WrittenState { image, written_bytes: 0, log }))
    }

    /// Returns a copy of the file as it is now.
    pub(super) fn image(&self) -> Image {
        self.lock().image.clone()
    }

    /// Returns the file as it is now, and leaves an empty one.
    pub(super) fn take_image(&self) -> Image {
        std::mem::take(&mut self.lock().image)
    }

    /// Calls `read` with the file as it is now.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Image) -> T) -> T {
        read(&self.lock().image)
    }

    /// Returns data as [`Storage::next_data`] does. The bytes may change, and are copied to `scratch`.
    pub(super) fn next_data<'a>(
        &self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        self.read(|image| match image.next_data(from, until, &mut [0; GRAIN_BYTES as usize])? {
            Some(Data { offset, .. }) => read_widened(image, from, offset, until, scratch),
            None => Ok(None),
        })
    }

    /// Writes `bytes` at `offset`. The file grows to their end.
    pub(super) fn write_at(&self, offset: HostOffset, bytes: &[u8]) -> Result<(), StorageError> {
        let end = offset
            .checked_add(bytes.len() as u64)
            .filter(|end| end.get() <= MAX_WRITTEN_LENGTH_BYTES);
        let mut state = self.lock();
        let WrittenState { image, written_bytes, log } = &mut *state;
        // A number of bytes that saturates is too large.
        let all_bytes = written_bytes.saturating_add(bytes.len() as u64);
        let (Some(end), true) = (end, all_bytes <= MAX_BYTES_OF_WRITES) else {
            return Err(StorageError { offset, kind: ErrorKind::FileTooLarge });
        };
        *written_bytes = all_bytes;
        if let Some(log) = log {
            log.note_write(image, offset, bytes);
        }
        image.set_length(image.length_bytes().max(end.get()));
        image.overwrite(offset, bytes);
        Ok(())
    }

    /// Cuts the file, or appends a hole.
    pub(super) fn set_length(&self, length_bytes: u64) -> Result<(), StorageError> {
        if length_bytes > MAX_WRITTEN_LENGTH_BYTES {
            let offset = HostOffset::new(length_bytes);
            return Err(StorageError { offset, kind: ErrorKind::FileTooLarge });
        }
        let mut state = self.lock();
        let WrittenState { image, log, .. } = &mut *state;
        if let Some(log) = log {
            log.note_length(image, length_bytes);
        }
        image.set_length(length_bytes);
        Ok(())
    }

    /// Has the file keep all that was written so far.
    pub(super) fn flush(&self) {
        self.note(WriteLog::note_flush);
    }

    /// Notes that the guest relies on all that was written so far.
    pub(super) fn settle(&self) {
        self.note(WriteLog::settle);
    }

    /// Notes that the image is closed: all that was written is on the disk.
    pub(super) fn closed(&self) {
        self.note(WriteLog::clear);
    }

    /// Returns a file that a cut could have left.
    pub(super) fn cut(&self, kind: CutKind, choice: u16) -> Image {
        let state = self.lock();
        match &state.log {
            Some(log) => log.cut(&state.image, kind, choice),
            None => state.image.clone(),
        }
    }

    /// Returns the number of changes in the log.
    pub(super) fn changes(&self) -> usize {
        self.lock().log.as_ref().map_or(0, WriteLog::changes)
    }

    /// Returns a file that a cut could have left while the changes behind the first `changes` happened, if there are
    /// any.
    pub(super) fn cut_since(&self, changes: usize, kind: CutKind, choice: u16) -> Option<Image> {
        let state = self.lock();
        state.log.as_ref()?.cut_since(&state.image, changes, kind, choice)
    }

    fn note(&self, note: impl FnOnce(&mut WriteLog)) {
        if let Some(log) = &mut self.lock().log {
            note(log);
        }
    }

    fn lock(&self) -> MutexGuard<'_, WrittenState> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
