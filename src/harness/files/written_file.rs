//! The files in memory that an engine writes.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Data, GRAIN_BYTES, Storage, Stored, read_widened};
use crate::harness::files::file_faults::FileFaults;
use crate::harness::files::write_log::{CutChoices, WriteLog};
use crate::images::files::image::Image;
use crate::images::files::{LayerFile, LayerFiles};
use crate::programs::CutKind;
use crate::programs::operand::FileOperation;

/// A device stores whole sectors.
const SECTOR_BYTES: u64 = 512;
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
    /// The operations of the engine that fail.
    faults: FileFaults,
    /// The image lies on a device, whose length it has.
    on_device: bool,
}

impl WrittenState {
    /// Returns the error of an operation on a file that needs `length_bytes`, if there is no room for them.
    fn meet_end(&mut self, file: LayerFile, length_bytes: u64) -> Option<StorageError> {
        let capacity = self.files.file(file).length_bytes();
        let has_end = self.on_device && file == LayerFile::Image;
        let is_behind = has_end && length_bytes > capacity;
        is_behind.then(|| self.faults.meet_end(HostOffset::new(capacity)))
    }
}

impl WrittenFiles {
    /// Creates the files. Keeps their writes if there are cuts. An image on a device keeps its length.
    pub(crate) fn new(files: LayerFiles, has_cuts: bool, on_device: bool) -> Self {
        let log = has_cuts.then(WriteLog::default);
        let faults = FileFaults::default();
        let state = WrittenState { files, written_bytes: 0, version: 0, log, faults, on_device };
        Self(Mutex::new(state))
    }

    /// Reports whether the image lies on a device.
    pub(crate) fn on_device(&self) -> bool {
        self.lock().on_device
    }

    /// Returns the length of the device on which the image lies, if it does.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn device_bytes(&self) -> Option<u64> {
        let state = self.lock();
        state.on_device.then(|| state.files.file(LayerFile::Image).length_bytes())
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

    /// Returns the number of bytes that were written, and written again.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.lock().written_bytes
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

    /// Returns the power cuts that leave different files; with `since`, only those after more changes than that.
    pub(crate) fn cut_choices(&self, since: Option<usize>) -> CutChoices {
        let state = self.lock();
        let log = state.log.as_ref();
        log.map_or_else(CutChoices::default, |log| log.choices(&state.files, since))
    }

    /// Calls `change` with the faults that operations of the engine meet.
    pub(crate) fn faults<T>(&self, change: impl FnOnce(&mut FileFaults) -> T) -> T {
        change(&mut self.lock().faults)
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

/// Returns the bytes that a short write stores: the whole sectors in the first half.
fn first_sectors(offset: HostOffset, bytes: &[u8]) -> &[u8] {
    let half = offset.get().saturating_add(bytes.len() as u64 / 2);
    let end = half / SECTOR_BYTES * SECTOR_BYTES;
    // At most the half of a length in memory.
    &bytes[..end.saturating_sub(offset.get()) as usize]
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

    /// Returns the length of the file.
    pub(crate) fn length_bytes(&self) -> u64 {
        self.files.lock().files.file(self.file).length_bytes()
    }

    /// Reads bytes as [`Storage::read_at`] does.
    pub(crate) fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        self.read(offset, |image| image.read_at(offset, into))
    }

    /// Returns what is stored as [`Storage::stored`] does.
    pub(crate) fn stored(
        &self,
        from: HostOffset,
        until: HostOffset,
    ) -> Result<Stored, StorageError> {
        self.read(from, |image| image.stored(from, until))
    }

    /// Calls `read` with the file as it is now, unless the read meets a fault.
    fn read<T>(
        &self,
        offset: HostOffset,
        read: impl FnOnce(&Image) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let mut state = self.files.lock();
        match state.faults.meet(FileOperation::Read, offset) {
            Some(error) => Err(error),
            None => read(state.files.file(self.file)),
        }
    }

    /// Returns data as [`Storage::next_data`] does. The bytes may change, and are copied to `scratch`.
    pub(crate) fn next_data<'a>(
        &self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        self.read(from, |image| {
            match image.next_data(from, until, &mut [0; GRAIN_BYTES as usize])? {
                Some(Data { offset, .. }) => read_widened(image, from, offset, until, scratch),
                None => Ok(None),
            }
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
        let needed_bytes = offset.get().saturating_add(bytes.len() as u64);
        state.meet_end(self.file, needed_bytes).map_or(Ok(()), Err)?;
        let WrittenState { files, written_bytes, version, log, faults, .. } = &mut *state;
        let met = faults.meet(FileOperation::Write, offset);
        let stored = match &met {
            None => bytes,
            Some(_) if faults.is_short() => first_sectors(offset, bytes),
            Some(_) => &[],
        };
        if let ([], Some(error)) = (stored, met) {
            return Err(error);
        }
        let image = files.file_mut(self.file);
        // A saturated number of bytes exceeds the limit.
        let all_bytes = written_bytes.saturating_add(bytes.len() as u64);
        let (Some(end), true) = (end, all_bytes <= MAX_BYTES_OF_WRITES) else {
            return Err(StorageError { offset, kind: ErrorKind::FileTooLarge });
        };
        *written_bytes = all_bytes;
        *version += 1;
        if let Some(log) = log {
            log.note_write(self.file, image, offset, stored);
        }
        let unstored = (bytes.len() - stored.len()) as u64;
        let end = end.get().saturating_sub(unstored);
        image.set_length(image.length_bytes().max(end));
        image.overwrite(offset, stored);
        met.map_or(Ok(()), Err)
    }

    /// Cuts the file, or appends a hole.
    pub(crate) fn set_length(&self, length_bytes: u64) -> Result<(), StorageError> {
        if length_bytes > MAX_WRITTEN_LENGTH_BYTES {
            let offset = HostOffset::new(length_bytes);
            return Err(StorageError { offset, kind: ErrorKind::FileTooLarge });
        }
        let mut state = self.files.lock();
        state.meet_end(self.file, length_bytes).map_or(Ok(()), Err)?;
        if state.on_device && self.file == LayerFile::Image {
            // A device keeps its length (QEMU, `raw_co_truncate`).
            return Ok(());
        }
        let WrittenState { files, version, log, faults, .. } = &mut *state;
        let met = faults.meet(FileOperation::Length, HostOffset::new(length_bytes));
        met.map_or(Ok(()), Err)?;
        *version += 1;
        let image = files.file_mut(self.file);
        if let Some(log) = log {
            log.note_length(self.file, image, length_bytes);
        }
        image.set_length(length_bytes);
        Ok(())
    }

    /// Has the file keep all that was written to it so far. If that fails, a cut may lose it.
    pub(crate) fn flush(&self) -> Result<(), StorageError> {
        let met = self.files.faults(|faults| faults.meet(FileOperation::Flush, HostOffset::ZERO));
        met.map_or(Ok(()), Err)?;
        self.files.note(|log| log.note_flush(self.file));
        Ok(())
    }
}
