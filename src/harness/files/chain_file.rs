//! A file of an image chain. Its bytes are those that the build made, or those that an engine has written; reads may
//! meet faults.

use std::io::ErrorKind;
use std::sync::Arc;

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Data, Storage, Stored};
use crate::images::damage::ReadFaults;
use crate::images::files::image::Image;
use crate::images::files::{LayerFile, LayerFiles};
use crate::programs::operand::FileOperation;

use super::meter::{FileAccess, Meter};
use super::turns::Turn;
use super::written_file::WrittenFile;

/// A file of a chain. A copy of it is the same file. Only the image at the top of a chain that an engine opens for
/// writing can be written, and its data file.
#[derive(Clone, Debug)]
pub struct ChainFile {
    pub(super) files: Arc<LayerFiles>,
    /// The layer, counted from the top.
    pub(super) depth: usize,
    pub(super) part: LayerFile,
    pub(super) meter: Arc<Meter>,
    pub(super) bytes: ByteSource,
}

/// The place in which the reads of a file find its bytes.
#[derive(Clone, Debug)]
pub(super) enum ByteSource {
    /// In the built file.
    Built,
    /// In the built file, and some reads meet faults.
    Faulty(Arc<ReadFaults>),
    /// In a copy of the built file that can be written.
    Written(WrittenFile),
}

impl ChainFile {
    /// Returns the name by which another file of the chain names this one.
    pub fn name(&self) -> &str {
        match self.part {
            LayerFile::Image => &self.files.name,
            LayerFile::DataFile => &self.files.data_file_name,
            LayerFile::Extent(index) => &self.files.extent_names[index],
        }
    }

    /// Writes `bytes` at `offset`. The file grows to their end.
    ///
    /// # Errors
    /// The file is not open for writing, an engine has written 256 MiB to the image and its data file, or the bytes end
    /// behind the end of a block device.
    pub fn write_at(&self, offset: HostOffset, bytes: &[u8]) -> Result<(), StorageError> {
        let length_bytes = bytes.len() as u64;
        self.meter.note_access(FileAccess { length_bytes, is_write: true, ..self.read_of(offset) });
        self.meter.turns.note(FileOperation::Write);
        self.changeable(offset)?.write_at(offset, bytes)
    }

    /// Calls `read` with this file. The engine does not make its reads.
    pub(crate) fn untraced<T>(&self, read: impl FnOnce(&Self) -> T) -> T {
        let was_traced = self.meter.interrupt_trace();
        let done = read(self);
        self.meter.resume_trace(was_traced);
        done
    }

    /// Returns the access of a read that has not returned any bytes yet.
    #[inline(always)]
    fn read_of(&self, offset: HostOffset) -> FileAccess {
        let (depth, file) = (self.depth, self.part);
        FileAccess { depth, file, offset, length_bytes: 0, is_write: false }
    }

    /// Cuts the file to `length_bytes`, or appends a hole. A block device keeps its length.
    ///
    /// # Errors
    /// The file is not open for writing, the length is 2^63 or more, or a block device is shorter.
    pub fn set_length(&self, length_bytes: u64) -> Result<(), StorageError> {
        self.meter.turns.note(FileOperation::Length);
        self.changeable(HostOffset::new(length_bytes))?.set_length(length_bytes)
    }

    /// Has the file keep all that was written to it so far in a power cut. A flush of an image does not flush its data
    /// file.
    ///
    /// # Errors
    /// The file is not open for writing.
    pub fn flush(&self) -> Result<(), StorageError> {
        self.meter.turns.note(FileOperation::Flush);
        self.writable(HostOffset::ZERO)?.flush()
    }

    /// Returns the turn of the next operation on this file. An engine that carries out requests in flight
    /// ([`OpenDisk::in_flight`](crate::harness::engine::OpenDisk::in_flight)) awaits it before each read, write, flush
    /// and new length. If no requests are in flight, it is there at once.
    pub fn turn(&self) -> Turn<'_> {
        self.meter.turns.turn()
    }

    /// Returns the file to change. Counts the attempt if the file is open for reading only.
    fn changeable(&self, offset: HostOffset) -> Result<&WrittenFile, StorageError> {
        self.writable(offset).inspect_err(|_| self.meter.count_refused_write())
    }

    fn writable(&self, offset: HostOffset) -> Result<&WrittenFile, StorageError> {
        self.written().ok_or(StorageError { offset, kind: ErrorKind::PermissionDenied })
    }

    pub(super) fn written(&self) -> Option<&WrittenFile> {
        match &self.bytes {
            ByteSource::Written(file) => Some(file),
            _ => None,
        }
    }

    /// Reads a file of which faults or an engine have changed bytes. It is not part of [`Storage::read_at`], so that
    /// the compiler puts the read of a built file into its callers.
    #[cold]
    fn read_changed(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        match &self.bytes {
            ByteSource::Built => self.built().read_at(offset, into),
            ByteSource::Faulty(faults) => faults.read_at(self.built(), offset, into),
            ByteSource::Written(file) => {
                self.meter.turns.note(FileOperation::Read);
                file.read_at(offset, into)
            }
        }
    }

    /// Returns the file that the build made.
    #[inline]
    pub(crate) fn built(&self) -> &Image {
        self.files.file(self.part)
    }
}

impl Storage for ChainFile {
    fn length_bytes(&self) -> u64 {
        match &self.bytes {
            ByteSource::Written(file) => file.length_bytes(),
            _ => self.built().length_bytes(),
        }
    }

    #[inline]
    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        self.meter.count_read(self.read_of(offset))?;
        self.meter.count_bytes(offset, into.len());
        match &self.bytes {
            ByteSource::Built => self.built().read_at(offset, into),
            _ => self.read_changed(offset, into),
        }
    }

    fn stored(&self, from: HostOffset, until: HostOffset) -> Result<Stored, StorageError> {
        self.meter.count_read(self.read_of(from))?;
        match &self.bytes {
            ByteSource::Written(file) => file.stored(from, until),
            _ => self.built().stored(from, until),
        }
    }

    #[inline]
    fn next_data<'a>(
        &'a self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        self.meter.count_read(self.read_of(from))?;
        let data = match &self.bytes {
            ByteSource::Written(file) => {
                self.meter.turns.note(FileOperation::Read);
                file.next_data(from, until, scratch)?
            }
            ByteSource::Faulty(faults) => faults.next_data(self.built(), from, until, scratch)?,
            _ => self.built().next_data(from, until, scratch)?,
        };
        let (at, bytes) = data.map_or((from, 0), |data| (data.offset, data.bytes.len()));
        self.meter.count_bytes(at, bytes);
        Ok(data)
    }
}
