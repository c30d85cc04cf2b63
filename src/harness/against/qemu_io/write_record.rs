//! The writes of QEMU to a file, as its driver blklogwrites records them (block/blklogwrites.c): a sector with the size
//! of the sectors, then a sector for each write or flush, with the written bytes behind it. All numbers are
//! little-endian.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::harness::files::chain::ChainFile;

use super::failure::fail;

/// The unit of the record: the size of a sector, which QEMU gets as an option.
pub(super) const SECTOR_BYTES: u64 = 512;
/// The flag of an entry that is a flush.
const FLUSHED: u64 = 1;
/// The flag of an entry that is a discard. It has no bytes.
const DISCARDED: u64 = 4;

/// The record of the writes to one file at a time.
#[derive(Debug)]
pub(super) struct WriteRecord {
    path: PathBuf,
    file: File,
    /// The offset of the next entry.
    position: u64,
    bytes: Vec<u8>,
}

/// An entry of the record.
struct WriteEntry {
    first_sector: u64,
    sectors: u64,
    flags: u64,
}

impl WriteRecord {
    /// Creates an empty record at `path`.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let path = path.to_path_buf();
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        Ok(Self { path, file, position: SECTOR_BYTES, bytes: Vec::new() })
    }

    /// Returns the path of the record.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Empties the record, for another file.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.position = SECTOR_BYTES;
        self.file.set_len(0)
    }

    /// Repeats the new entries in a file. QEMU has answered the command that caused them, so that all are there.
    /// Discards are not repeated: the discarded bytes may stay as they are.
    ///
    /// # Errors
    /// The file takes no more. A record that cannot be read ends the run without a verdict.
    pub(super) fn repeat(&mut self, file: &ChainFile) -> Result<(), StorageError> {
        while let Some(entry) = self.next().unwrap_or_else(|error| unreadable(&error)) {
            let from = self.position.saturating_add(SECTOR_BYTES);
            self.position = from;
            if entry.flags & DISCARDED == 0 {
                let length = entry.sectors.saturating_mul(SECTOR_BYTES);
                self.position = from.saturating_add(length);
                self.read(from, length).unwrap_or_else(|error| unreadable(&error));
                let offset = entry.first_sector.saturating_mul(SECTOR_BYTES);
                if length > 0 {
                    file.write_at(HostOffset::new(offset), &self.bytes)?;
                }
            }
            if entry.flags & FLUSHED != 0 {
                file.flush()?;
            }
        }
        Ok(())
    }

    /// Reads the bytes of an entry.
    fn read(&mut self, from: u64, length: u64) -> io::Result<()> {
        if from.saturating_add(length) > self.file.metadata()?.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.bytes.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
        self.file.read_exact_at(&mut self.bytes, from)
    }

    /// Returns the next entry, if there is one.
    fn next(&self) -> io::Result<Option<WriteEntry>> {
        if self.position.saturating_add(SECTOR_BYTES) > self.file.metadata()?.len() {
            return Ok(None);
        }
        let mut words = [0; 24];
        self.file.read_exact_at(&mut words, self.position)?;
        let (words, _) = words.as_chunks::<8>();
        let [first_sector, sectors, flags] = [0, 1, 2].map(|nth| u64::from_le_bytes(words[nth]));
        Ok(Some(WriteEntry { first_sector, sectors, flags }))
    }
}

/// Ends the run without a verdict: the system refuses the record, or the file that QEMU writes.
pub(super) fn unreadable(error: &io::Error) -> ! {
    fail(&format!("the record of the writes: {error}"))
}
