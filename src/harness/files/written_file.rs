//! The files in memory that an engine writes.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Data, GRAIN_BYTES, Storage, read_widened};
use crate::harness::files::write_log::WriteLog;
use crate::images::files::image::Image;
use crate::images::files::{LayerFile, LayerFiles};
use crate::programs::CutKind;

/// The longest file, as in QEMU.
const MAX_WRITTEN_LENGTH_BYTES: u64 = i64::MAX as u64;
/// The most bytes that an engine may write to the files; bytes that it writes twice count twice. The requests of a
/// program need far less, and an engine that writes without end does not take all memory.
const MAX_BYTES_OF_WRITES: u64 = 256 << 20;

/// The files that an engine writes: the image at the top of a chain, and its data file.
#[derive(Debug)]
pub(crate) struct WrittenFiles(Mutex<WrittenState>);

#[derive(Debug)]
struct WrittenState {
    files: LayerFiles,
    /// The number of bytes that were written, and written again.
    written_bytes: u64,
    /// The number of writes and of new lengths so far.
    version: u64,
    /// The writes, if a cut is to come.
    log: Option<WriteLog>,
}

impl WrittenFiles {
    /// Creates the files. Keeps their writes if there are cuts.
    pub(crate) fn new(files: LayerFiles, has_cuts: bool) -> Self {
        let log = has_cuts.then(WriteLog::default);
        Self(Mutex::new(WrittenState { files, written_bytes: 0, version: 0, log }))
    }

    /// Returns a copy of the files as they are now.
    pub(crate) fn files(&self) -> LayerFiles {
        self.lock().files.clone()
    }

    /// Returns the files as they are now, and leaves empty ones.
    pub(crate) fn take_files(&self) -> LayerFiles {
        std::mem::take(&mut self.lock().files)
    }

    /// Returns the files that a cut could have left.
    pub(crate) fn cut(&self, kind: CutKind, choice: u16) -> LayerFiles {
        let state = self.lock();
        match &state.log {
            Some(log) => log.cut(&state.files, kind, choice),
            None => state.files.clone(),
        }
    }

    /// Returns the number of writes and of new lengths so far.
    pub(crate) fn version(&self) -> u64 {
        self.lock().version
    }

    /// Returns the number of changes so far, if there is a log.
    pub(crate) fn changes(&self) -> usize {
        self.lock().log.as_ref().map_or(0, WriteLog::changes)
    }

    /// Returns the files that a cut could leave after at least one change beyond the first `changes`; `None` if there
    /// is no such change.
    pub(crate) fn cut_since(
        &self,
        changes: usize,
        kind: CutKind,
        choice: u16,
    ) -> Option<LayerFiles> {
        let state = self.lock();
        state.log.as_ref()?.cut_since(&state.files, changes, kind, choice)
    }

    /// Calls `note` with the log, if there is one.
    pub(crate) fn note(&self, note: impl FnOnce(&mut WriteLog)) {
        if let Some(log) = &mut self.lock().log {
            note(log);
        }
    }

    fn lock(&self) -> MutexGuard<'_, WrittenState> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the files that an engine writes.
#[derive(Clone, Debug)]
pub(crate) struct WrittenFile {
    /// Both files.
    pub(crate) files: Arc<WrittenFiles>,
    file: LayerFile,
}

impl WrittenFile {
    pub(crate) fn new(files: Arc<WrittenFiles>, file: LayerFile) -> Self {
        Self { files, file }
    }

    /// Calls `read` with the file as it is now.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Image) -> T) -> T {
        read(self.files.lock().files.file(self.file))
    }

    /// Returns data as [`Storage::next_data`] does. The bytes may change, and are copied to `scratch`.
    pub(crate) fn next_data<'a>(
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

    /// Writes `bytes` at `offset`. If they end past the end of the file, the file grows. Empty `bytes` change nothing.
    pub(crate) fn write_at(&self, offset: HostOffset, bytes: &[u8]) -> Result<(), StorageError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset
            .checked_add(bytes.len() as u64)
            .filter(|end| end.get() <= MAX_WRITTEN_LENGTH_BYTES);
        let mut state = self.files.lock();
        let WrittenState { files, written_bytes, version, log } = &mut *state;
        let image = files.file_mut(self.file);
        // A saturated number of bytes exceeds the limit.
        let all_bytes = written_bytes.saturating_add(bytes.len() as u64);
        let (Some(end), true) = (end, all_bytes <= MAX_BYTES_OF_WRITES) else {
            return Err(StorageError { offset, kind: ErrorKind::FileTooLarge });
        };
        *written_bytes = all_bytes;
        *version += 1;
        if let Some(log) = log {
            log.note_write(self.file, image, offset, bytes);
        }
        image.set_length(image.length_bytes().max(end.get()));
        image.overwrite(offset, bytes);
        Ok(())
    }

    /// Cuts the file, or appends a hole.
    pub(crate) fn set_length(&self, length_bytes: u64) -> Result<(), StorageError> {
        if length_bytes > MAX_WRITTEN_LENGTH_BYTES {
            let offset = HostOffset::new(length_bytes);
            return Err(StorageError { offset, kind: ErrorKind::FileTooLarge });
        }
        let mut state = self.files.lock();
        let WrittenState { files, version, log, .. } = &mut *state;
        *version += 1;
        let image = files.file_mut(self.file);
        if let Some(log) = log {
            log.note_length(self.file, image, length_bytes);
        }
        image.set_length(length_bytes);
        Ok(())
    }

    /// Has the file keep all that was written to it so far.
    pub(crate) fn flush(&self) {
        self.files.note(|log| log.note_flush(self.file));
    }
}
