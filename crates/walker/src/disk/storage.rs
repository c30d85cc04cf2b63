//! The bytes that an image is read from: a slice of memory or a file, with data and holes.
//!
//! # Arithmetic
//! An offset that is held at 2^64 - 1 lies past the end of every file, and past the end there are zeros. The same holds
//! for an offset that has no room in a `usize`. A length that would be negative is 0: nothing is read.

use std::fs::{File, Metadata};
use std::io::{Seek, SeekFrom};
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use super::offsets::HostOffset;
use crate::disk::error::{FileError, StorageError};

/// The files of one layer of a backing chain. A chain is a slice of layers; the image itself is the first one.
#[derive(Debug)]
pub struct Layer<'s, S: Storage + ?Sized = dyn Storage + 's> {
    /// The image.
    pub image: &'s S,
    /// The external data file, if the image has one.
    pub data_file: Option<&'s S>,
    /// The files of the extents that the image names, in its order. Extents in one file, by the same name, have the
    /// same storage.
    pub extents: &'s [Arc<S>],
}

impl<'s, S: Storage + ?Sized> Layer<'s, S> {
    /// Creates a layer without an external data file and without extents.
    pub const fn alone(image: &'s S) -> Self {
        Self { image, data_file: None, extents: &[] }
    }
}

impl<'s, S: Storage> Layer<'s, S> {
    /// Returns the layer behind `dyn Storage`. `extents` are the files of its extents, from
    /// [`Layer::erased_extents`].
    pub fn erased(self, extents: &'s [Arc<dyn Storage + 's>]) -> Layer<'s> {
        let data_file = self.data_file.map(|file| file as &dyn Storage);
        Layer { image: self.image, data_file, extents }
    }

    /// Returns the files of the extents behind `dyn Storage`.
    pub fn erased_extents(&self) -> Vec<Arc<dyn Storage + 's>> {
        self.extents.iter().map(|file| Arc::clone(file) as Arc<dyn Storage + 's>).collect()
    }
}

impl<S: Storage + ?Sized> Clone for Layer<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Storage + ?Sized> Copy for Layer<'_, S> {}

/// The granularity of [`Storage::next_data`] in bytes: the length of an extended L2 entry, so that no answer cuts a
/// table entry in two.
pub const GRAIN_BYTES: u64 = 16;

/// The number of bytes of a table that a reader reads at once from a file: the length of the buffers that callers
/// pass to [`each_data`].
pub const PIECE_BYTES: usize = 32 << 10;

/// Bytes of an image that may be data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'a> {
    /// The offset of the first byte.
    pub offset: HostOffset,
    /// The bytes; never empty.
    pub bytes: &'a [u8],
}

/// An answer of [`Storage::stored`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The bytes are stored. If false, they lie in a hole of the file or past its end.
    pub stored: bool,
    /// The offset at which this ends.
    pub end: HostOffset,
}

/// A readable image. Past its end it reads as zeros, as in QEMU.
pub trait Storage {
    /// Returns the file's length.
    fn length_bytes(&self) -> u64;

    /// Fills `into` with the bytes from `offset` on. Holes, and bytes past the end, read as zeros.
    ///
    /// # Errors
    /// The bytes could not be read; `into` may then hold anything.
    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError>;

    /// Reports whether the bytes from `from` on are stored or lie in a hole of the file, and where that ends: after
    /// `from`, and at `until` at the latest. Bytes past the end of the file are not stored. The default suits a
    /// storage without holes.
    ///
    /// # Errors
    /// The system does not answer.
    fn stored(&self, from: HostOffset, until: HostOffset) -> Result<Stored, StorageError> {
        let end = HostOffset::new(self.length_bytes());
        Ok(match from < end {
            true => Stored { stored: true, end: end.min(until) },
            false => Stored { stored: false, end: until },
        })
    }

    /// Returns the number of bytes that the file takes on its file system, without its holes. `None`, the default, if
    /// the storage is no file.
    fn allocated_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the first data in `from..until`, or `None` if the range holds only zeros. The data are borrowed from
    /// the storage or read into `scratch`. Skipped bytes are zeros; returned bytes may be zeros, too.
    ///
    /// The data begin a multiple of [`GRAIN_BYTES`] after `from`, and their length is a multiple of [`GRAIN_BYTES`].
    /// They may reach past `until`. `scratch` has at least [`GRAIN_BYTES`]. For more data, call this again from the end
    /// of the data.
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

/// Reads `first..until` into `scratch` as an answer of [`Storage::next_data`]: as much as fits, beginning at the
/// grain that holds `first`. Grains are counted from `from`.
pub fn read_widened<'a>(
    storage: &(impl Storage + ?Sized),
    from: HostOffset,
    first: HostOffset,
    until: HostOffset,
    scratch: &'a mut [u8],
) -> Result<Option<Data<'a>>, StorageError> {
    let until = until.get().min(storage.length_bytes().max(from.get()));
    let skipped = first.get().saturating_sub(from.get()) / GRAIN_BYTES * GRAIN_BYTES;
    let offset = from + skipped;
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

/// Reads `N` bytes. Holes, and bytes past the end, read as zeros.
///
/// # Errors
/// The bytes could not be read.
pub fn read_array<const N: usize>(
    storage: &(impl Storage + ?Sized),
    offset: HostOffset,
) -> Result<[u8; N], StorageError> {
    let mut bytes = [0; N];
    storage.read_at(offset, &mut bytes)?;
    Ok(bytes)
}

/// Calls `take` with all data in `range`, in order, until it breaks. See [`Storage::next_data`].
///
/// # Errors
/// A read fails, or `take` breaks with an error.
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
        from = data.offset + data.bytes.len() as u64;
        if take(data)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// An image in memory, with the bytes of the file.
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

    fn allocated_bytes(&self) -> Option<u64> {
        (**self).allocated_bytes()
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
    allocated_bytes: u64,
    is_block_device: bool,
}

/// The identity of a file: two names of one file have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileStorage {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a regular file.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        Self::open_kind(path, false)
    }

    /// Opens the file or the block device at `path`. Only a user may name a device, and not an image: to open a device
    /// can have effects, and an image can come from anyone.
    ///
    /// # Errors
    /// The file cannot be opened, or is neither a regular file nor a block device.
    pub fn open_with_devices(path: &Path) -> Result<Self, FileError> {
        Self::open_kind(path, true)
    }

    fn open_kind(path: &Path, with_devices: bool) -> Result<Self, FileError> {
        let failed = |source| FileError::new(path, source);
        let check = |metadata: std::io::Result<Metadata>| {
            let metadata = metadata.map_err(failed)?;
            let kind = metadata.file_type();
            let what = match with_devices {
                true => "not a regular file or a block device",
                false => "not a regular file",
            };
            let is_allowed = kind.is_file() || with_devices && kind.is_block_device();
            is_allowed.then_some(metadata).ok_or_else(|| failed(std::io::Error::other(what)))
        };
        // Opening a pipe would wait for a writer, so check the file type first.
        check(std::fs::metadata(path))?;
        let mut file = File::open(path).map_err(failed)?;
        let metadata = check(file.metadata())?;
        let id = FileId { device: metadata.dev(), inode: metadata.ino() };
        let is_block_device = metadata.file_type().is_block_device();
        let end = is_block_device.then(|| length_by_seeking(&mut file)).transpose();
        let length_bytes = end.map_err(failed)?.unwrap_or(metadata.len());
        // Blocks of `st_blocks` have 512 bytes on every file system. A length that does not fit is larger than any.
        let allocated_bytes = metadata.blocks().saturating_mul(512);
        Ok(Self { length_bytes, allocated_bytes, is_block_device, id, file })
    }

    /// Reports whether the file is a block device.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Returns the identity of the file.
    pub fn id(&self) -> FileId {
        self.id
    }
}

/// Returns the length of a file whose metadata have none: the offset of its end.
fn length_by_seeking(file: &mut impl Seek) -> std::io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// Returns what a file of `length_bytes` stores at the start of `range`, by the answers of `seek` about data and holes.
#[cfg(unix)]
fn stored_by(
    seek: impl Fn(rustix::fs::SeekFrom) -> Result<u64, rustix::io::Errno>,
    length_bytes: u64,
    range: Range<HostOffset>,
) -> Stored {
    use rustix::fs::SeekFrom;
    let (from, until) = (range.start.get(), range.end);
    let at = |end: u64| HostOffset::new(end.max(from.saturating_add(1)).min(until.get()));
    match seek(SeekFrom::Data(from)) {
        Ok(first) if first > from => Stored { stored: false, end: at(first) },
        Ok(_) => match seek(SeekFrom::Hole(from)) {
            // The end of the file counts as a hole.
            Ok(hole) => Stored { stored: true, end: at(hole) },
            Err(_) => Stored { stored: true, end: at(length_bytes) },
        },
        Err(rustix::io::Errno::NXIO) => Stored { stored: false, end: until },
        // A file system that does not report holes: everything up to the end is stored.
        Err(_) if from < length_bytes => Stored { stored: true, end: at(length_bytes) },
        Err(_) => Stored { stored: false, end: until },
    }
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
            let at = offset + filled as u64;
            // The kernel refuses offsets past i64::MAX. No file has data there.
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
        use rustix::fs::seek;
        Ok(stored_by(|to| seek(&self.file, to), self.length_bytes, from..until))
    }

    fn allocated_bytes(&self) -> Option<u64> {
        Some(self.allocated_bytes)
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
            // A file system that does not report holes: everything is data.
            Err(_) => from.get(),
        };
        read_widened(self, from, HostOffset::new(first), until, scratch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the system does not know holes, all of the file is data, and nothing lies behind it.
    #[cfg(unix)]
    #[test]
    fn a_file_system_may_not_report_holes() {
        use rustix::fs::SeekFrom;
        use rustix::io::Errno;
        let range = |from, until| HostOffset::new(from)..HostOffset::new(until);
        let stored = |stored, end| Stored { stored, end: HostOffset::new(end) };
        for errno in [Errno::INVAL, Errno::OPNOTSUPP] {
            let unknown = |_| Err(errno);
            assert_eq!(stored_by(unknown, 1000, range(0, 4096)), stored(true, 1000));
            assert_eq!(stored_by(unknown, 1000, range(999, 4096)), stored(true, 1000));
            assert_eq!(stored_by(unknown, 1000, range(0, 100)), stored(true, 100));
            assert_eq!(stored_by(unknown, 1000, range(1000, 4096)), stored(false, 4096));
        }
        // One that knows data alone, and one that knows both.
        let only_data = |to| match to {
            SeekFrom::Data(at) => Ok(at),
            _ => Err(Errno::INVAL),
        };
        assert_eq!(stored_by(only_data, 1000, range(5, 4096)), stored(true, 1000));
        let both = |to| match to {
            SeekFrom::Data(at) => Ok(at.max(500)),
            _ => Ok(700),
        };
        assert_eq!(stored_by(both, 1000, range(5, 4096)), stored(false, 500));
        assert_eq!(stored_by(both, 1000, range(600, 4096)), stored(true, 700));
        assert_eq!(stored_by(|_| Err(Errno::NXIO), 1000, range(600, 4096)), stored(false, 4096));
    }

    /// The tests of the command open a block device, if the machine allows it.
    #[test]
    fn the_length_of_a_device_is_the_offset_of_its_end() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(5000).unwrap();
        assert_eq!(length_by_seeking(&mut file).unwrap(), 5000);
        assert_eq!(length_by_seeking(&mut std::io::Cursor::new([0; 7])).unwrap(), 7);
    }

    #[test]
    fn folders_and_character_devices_are_refused() {
        for (path, expected) in [
            ("/", "/: not a regular file or a block device"),
            ("/dev/null", "/dev/null: not a regular file or a block device"),
        ] {
            let refused = FileStorage::open_with_devices(Path::new(path)).unwrap_err();
            assert_eq!(refused.to_string(), expected);
        }
        let refused = FileStorage::open(Path::new("/dev/null")).unwrap_err();
        assert_eq!(refused.to_string(), "/dev/null: not a regular file");
    }

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
