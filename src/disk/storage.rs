//! What an image is read from: memory or a file, with its data and its holes.
//!
//! # Arithmetic
//! An offset that is held at 2^64 - 1 lies past the end of every file, and past the end there are zeros. The same holds for
//! an offset that has no room in a `usize`. A length that would be negative is 0: nothing is read.

use std::fs::{File, Metadata};
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::offsets::HostOffset;
use crate::disk::error::{Error, StorageError};

/// The files of one layer of a backing chain. A chain is a slice of them, the image itself first.
#[derive(Debug)]
pub struct Layer<'s, S: Storage + ?Sized = dyn Storage + 's> {
    /// The image.
    pub image: &'s S,
    /// The external data file, where it has one.
    pub data_file: Option<&'s S>,
}

impl<'s, S: Storage + ?Sized> Layer<'s, S> {
    /// An image that has its data in itself.
    pub const fn alone(image: &'s S) -> Self {
        Self { image, data_file: None }
    }
}

impl<'s, S: Storage> Layer<'s, S> {
    /// The same files, of whatever kind they are.
    pub fn erased(self) -> Layer<'s> {
        Layer { image: self.image, data_file: self.data_file.map(|file| file as &dyn Storage) }
    }
}

impl<S: Storage + ?Sized> Clone for Layer<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Storage + ?Sized> Copy for Layer<'_, S> {}

/// What [`Storage::next_data`] widens its answers to: the length of an extended L2 entry, so that no
/// table entry is ever cut in two.
pub const GRAIN_BYTES: u64 = 16;

/// How much of a table is read at a time from a storage that has to read: how long the buffers are that
/// [`each_data`] is given.
pub const PIECE_BYTES: usize = 32 << 10;

/// Bytes of an image that are not known to be a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'a> {
    /// Where they begin.
    pub offset: HostOffset,
    /// The bytes; never empty.
    pub bytes: &'a [u8],
}

/// An answer of [`Storage::stored`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Whether the bytes are stored.
    pub stored: bool,
    /// Where that changes.
    pub end: HostOffset,
}

/// A readable image. Past its end there are zeros, as QEMU has it.
pub trait Storage {
    /// The file's length.
    fn length_bytes(&self) -> u64;

    /// Fills `into` from `offset` on, with zeros in holes and past the end.
    ///
    /// # Errors
    /// The bytes could not be read; `into` may then hold anything.
    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError>;

    /// Whether the bytes from `from` on are stored or a hole of the file, and where that changes: past
    /// `from`, at `until` at the latest. What lies past the end of the file is not stored. The default is
    /// for what has no holes.
    ///
    /// # Errors
    /// The file could not be asked.
    fn stored(&self, from: HostOffset, until: HostOffset) -> Result<Stored, StorageError> {
        let end = HostOffset::new(self.length_bytes());
        Ok(match from < end {
            true => Stored { stored: true, end: end.min(until) },
            false => Stored { stored: false, end: until },
        })
    }

    /// The first data in `from..until`, borrowed from the storage or read into `scratch`; `None`
    /// where there are only zeros. What is skipped is zeros; what is returned may be.
    ///
    /// `from` and `until` are multiples of [`GRAIN_BYTES`] and `scratch` is at least that long; so
    /// are the answer's offset and length. A caller that wants more asks again from its end.
    ///
    /// # Errors
    /// The bytes could not be read.
    fn next_data<'a>(
        &'a self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        read_widened(self, from, from, until, scratch)
    }
}

/// Reads `first..until` into `scratch` as an answer of [`Storage::next_data`]: as much as fits, from
/// the grain that `first` lies in, counted from `from`.
pub(crate) fn read_widened<'a>(
    storage: &(impl Storage + ?Sized),
    from: HostOffset,
    first: HostOffset,
    until: HostOffset,
    scratch: &'a mut [u8],
) -> Result<Option<Data<'a>>, StorageError> {
    let until = until.get().min(storage.length_bytes().max(from.get()));
    let skipped = first.get().saturating_sub(from.get()) / GRAIN_BYTES * GRAIN_BYTES;
    let offset = from.saturating_add(skipped);
    let wanted = until.saturating_sub(offset.get()).next_multiple_of(GRAIN_BYTES);
    let room = scratch.len() as u64 / GRAIN_BYTES * GRAIN_BYTES;
    let Ok(length) = usize::try_from(wanted.min(room)) else {
        return Ok(None);
    };
    if length == 0 {
        return Ok(None);
    }
    let bytes = &mut scratch[..length];
    storage.read_at(offset, bytes)?;
    Ok(Some(Data { offset, bytes }))
}

/// Calls `take` with all data in `range`, front to back, until it breaks; see [`Storage::next_data`].
///
/// # Errors
/// Those of `take`, and a failing read.
#[inline]
pub fn each_data<S: Storage + ?Sized, E: From<StorageError>>(
    storage: &S,
    range: Range<HostOffset>,
    scratch: &mut [u8],
    mut take: impl FnMut(Data<'_>) -> Result<ControlFlow<()>, E>,
) -> Result<ControlFlow<()>, E> {
    let mut from = range.start;
    while from < range.end
        && let Some(data) = storage.next_data(from, range.end, scratch)?
    {
        from = data.offset.saturating_add(data.bytes.len() as u64);
        if take(data)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// An image that lies in memory as it would lie in a file.
impl Storage for [u8] {
    fn length_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        let start = usize::try_from(offset.get()).unwrap_or(usize::MAX).min(self.len());
        let there = &self[start..];
        let length = there.len().min(into.len());
        into[..length].copy_from_slice(&there[..length]);
        into[length..].fill(0);
        Ok(())
    }
}

impl<S: Storage + ?Sized> Storage for &S {
    fn length_bytes(&self) -> u64 {
        (**self).length_bytes()
    }

    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        (**self).read_at(offset, into)
    }

    fn stored(&self, from: HostOffset, until: HostOffset) -> Result<Stored, StorageError> {
        (**self).stored(from, until)
    }

    fn next_data<'a>(
        &'a self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        (**self).next_data(from, until, scratch)
    }
}

/// An image file, opened for reading only.
#[derive(Debug)]
pub struct FileStorage {
    file: File,
    id: FileId,
    length_bytes: u64,
}

/// Which file it is, whatever its name: the same for two names of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileStorage {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// It cannot be opened, or is not a regular file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        // Opening a pipe waits for somebody to write to it: what it is is asked before.
        regular(path, std::fs::metadata(path))?;
        let file = File::open(path).map_err(|source| Error::file(path, source))?;
        let metadata = regular(path, file.metadata())?;
        let id = FileId { device: metadata.dev(), inode: metadata.ino() };
        Ok(Self { length_bytes: metadata.len(), id, file })
    }

    /// Which file it is.
    pub fn id(&self) -> FileId {
        self.id
    }
}

fn regular(path: &Path, metadata: std::io::Result<Metadata>) -> Result<Metadata, Error> {
    let metadata = metadata.map_err(|source| Error::file(path, source))?;
    if !metadata.is_file() {
        let what = "not a regular file";
        return Err(Error::file(path, std::io::Error::other(what)));
    }
    Ok(metadata)
}

#[cfg(unix)]
impl Storage for FileStorage {
    fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        use std::os::unix::fs::FileExt;
        let mut filled = 0;
        while filled < into.len() {
            let at = offset.saturating_add(filled as u64);
            // The kernel refuses offsets past i64::MAX; nothing lies there.
            if at.get() >= self.length_bytes {
                break;
            }
            match self.file.read_at(&mut into[filled..], at.get()) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(StorageError { offset: at, kind: error.kind() });
                }
            }
        }
        into[filled..].fill(0);
        Ok(())
    }

    fn stored(&self, from: HostOffset, until: HostOffset) -> Result<Stored, StorageError> {
        use rustix::fs::{SeekFrom, seek};
        let at = |end: u64| HostOffset::new(end.max(from.get().saturating_add(1)).min(until.get()));
        match seek(&self.file, SeekFrom::Data(from.get())) {
            Ok(first) if first > from.get() => Ok(Stored { stored: false, end: at(first) }),
            Ok(_) => match seek(&self.file, SeekFrom::Hole(from.get())) {
                // The end of the file counts as a hole.
                Ok(hole) => Ok(Stored { stored: true, end: at(hole) }),
                Err(_) => Ok(Stored { stored: true, end: at(self.length_bytes) }),
            },
            Err(rustix::io::Errno::NXIO) => Ok(Stored { stored: false, end: until }),
            // A file system that does not tell: everything is stored, up to the end.
            Err(_) if from.get() < self.length_bytes => {
                Ok(Stored { stored: true, end: at(self.length_bytes) })
            }
            Err(_) => Ok(Stored { stored: false, end: until }),
        }
    }

    fn next_data<'a>(
        &'a self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        use rustix::fs::{SeekFrom, seek};
        if from.get() >= self.length_bytes {
            return Ok(None);
        }
        let first = match seek(&self.file, SeekFrom::Data(from.get())) {
            Ok(first) if first >= until.get() => return Ok(None),
            Ok(first) => first.max(from.get()),
            // Only a hole from here to the end of the file.
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            // A file system that does not tell: everything is data.
            Err(_) => from.get(),
        };
        read_widened(self, from, HostOffset::new(first), until, scratch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_the_end_there_are_zeros() {
        let bytes = [7u8; 20];
        let storage: &[u8] = &bytes;
        let mut into = [1u8; 8];
        storage.read_at(HostOffset::new(16), &mut into).unwrap();
        assert_eq!(into, [7, 7, 7, 7, 0, 0, 0, 0]);
        storage.read_at(HostOffset::new(u64::MAX), &mut into).unwrap();
        assert_eq!(into, [0; 8]);
    }

    #[test]
    fn data_is_widened_to_whole_grains() {
        let bytes = [7u8; 20];
        let storage: &[u8] = &bytes;
        let mut scratch = [0u8; 64];
        let all = (HostOffset::ZERO, HostOffset::new(64));
        let data = storage.next_data(all.0, all.1, &mut scratch).unwrap().unwrap();
        assert_eq!((data.offset.get(), data.bytes.len()), (0, 32));
        let after = storage.next_data(HostOffset::new(32), all.1, &mut scratch).unwrap();
        assert_eq!(after, None);
    }

    #[test]
    fn holes_of_a_file_are_skipped() {
        use std::os::unix::fs::FileExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 30).unwrap();
        file.write_all_at(&[9; 16], 1 << 29).unwrap();
        let storage = FileStorage::open(&path).unwrap();
        let mut scratch = [0u8; 4096];
        let until = HostOffset::new(1 << 30);
        let mut from = HostOffset::ZERO;
        let mut read = 0;
        let mut found = false;
        while let Some(data) = storage.next_data(from, until, &mut scratch).unwrap() {
            read += data.bytes.len();
            found |= data.bytes.contains(&9);
            from = data.offset.checked_add(data.bytes.len() as u64).unwrap();
        }
        assert!(found);
        assert!(read < 1 << 20, "{read} bytes read of a file with one block of data");
    }
}
