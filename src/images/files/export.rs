//! Export of images to files: one that qemu-img can open, or all files of a chain in a folder.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{GRAIN_BYTES, PIECE_BYTES, Storage, each_data};

use super::image::Image;

/// The treatment of allocated clusters without content. A raw file that has holes keeps them in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holes {
    /// They stay holes of the file. qemu-img may then print the flag `zero` for their data.
    #[default]
    Keep,
    /// The export writes every byte up to the end of the file, so that `zero` is comparable (QEMU `block/qcow2.c`,
    /// `qcow2_detect_metadata_preallocation`). Only for small images.
    Fill,
}

/// Writes `image` to `file`, which is empty.
///
/// # Errors
/// The system refuses a write.
pub fn write(image: &Image, file: &File, holes: Holes) -> io::Result<()> {
    file.set_len(image.length_bytes())?;
    match (image.stored.before(image.length_bytes()), holes) {
        (Some(mut parts), _) => parts.try_for_each(|part| write_filled(image, file, part))?,
        (None, Holes::Fill) => return write_filled(image, file, 0..image.length_bytes()),
        (None, Holes::Keep) => {}
    }
    for data in image.written() {
        file.write_all_at(data.bytes, data.offset.get())?;
    }
    Ok(())
}

/// Writes all bytes of a part.
fn write_filled(image: &Image, file: &File, part: Range<u64>) -> io::Result<()> {
    let longest = usize::try_from(part.end - part.start).unwrap_or(usize::MAX).min(1 << 20);
    let mut piece = vec![0; longest];
    let mut at = part.start;
    while at < part.end {
        let left = part.end - at;
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        let piece = &mut piece[..length];
        image
            .read_at(HostOffset::new(at), piece)
            .map_err(|error| io::Error::new(error.kind, error))?;
        file.write_all_at(piece, at)?;
        at += length as u64;
    }
    Ok(())
}

/// A folder that holds the files of one chain at a time. The caller creates it and deletes it; nothing else may write
/// to it, unless the caller says so afterwards. The folder overwrites its files from chain to chain, because new files
/// cost more.
#[derive(Debug)]
pub struct ChainFolder {
    path: PathBuf,
    max_stored_bytes: u64,
    files: Vec<HeldFile>,
    /// The number of files that were written.
    writes: u64,
    next: FileContent,
    scratch: Vec<u8>,
}

/// A file of the folder.
#[derive(Debug)]
struct HeldFile {
    name: String,
    file: File,
    /// The content, if it is known: a write may have failed.
    content: Option<FileContent>,
}

/// The bytes of a file without its holes.
#[derive(Debug, Default, PartialEq, Eq)]
struct FileContent {
    length_bytes: u64,
    /// The offset and the length of each part that is stored.
    parts: Vec<(u64, usize)>,
    /// The bytes of all parts.
    bytes: Vec<u8>,
}

/// The reason why a folder does not hold the files of a chain.
#[derive(Debug, thiserror::Error)]
pub enum ChainFolderError {
    /// A read of the chain failed.
    #[error(transparent)]
    Read(#[from] StorageError),
    /// The files are too large.
    #[error(
        "the files of the chain have more than {max_stored_bytes} stored bytes, expected at most that many"
    )]
    TooLarge {
        /// The limit of the folder.
        max_stored_bytes: u64,
    },
    /// The system refused a file.
    #[error("{path}: a file of {length_bytes} bytes: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Its length; it may be more than the file system allows.
        length_bytes: u64,
        /// The reason.
        source: io::Error,
    },
}

impl ChainFolder {
    /// Uses the folder at `path`, which must be empty. All files together store at most `max_stored_bytes`; holes do
    /// not count.
    pub fn new(path: impl Into<PathBuf>, max_stored_bytes: u64) -> Self {
        let (files, next, scratch) = (Vec::new(), FileContent::default(), vec![0; PIECE_BYTES]);
        Self { path: path.into(), max_stored_bytes, files, writes: 0, next, scratch }
    }

    /// Returns the number of files that were written. If it has not changed, the content of the folder has not.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the file that has this name.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Notes that another process may have changed the files: all of them are written again.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn forget(&mut self) {
        self.files.iter_mut().for_each(|file| file.content = None);
    }

    /// Writes these files. Files of earlier chains with other names stay. Every file is read, even if it has not
    /// changed.
    pub(crate) fn hold<'f, S: Storage + 'f>(
        &mut self,
        files: impl Iterator<Item = (&'f str, &'f S)>,
    ) -> Result<(), ChainFolderError> {
        let mut left = self.max_stored_bytes;
        for (name, storage) in files {
            let Self { next, scratch, .. } = self;
            let too_large =
                || ChainFolderError::TooLarge { max_stored_bytes: self.max_stored_bytes };
            left = next.take(storage, left, scratch)?.ok_or_else(too_large)?;
            let path = self.path.join(name);
            let length_bytes = next.length_bytes;
            let failed =
                |source| ChainFolderError::File { path: path.clone(), length_bytes, source };
            let at = self.files.iter().position(|held| held.name == name);
            let at = match at {
                Some(at) => at,
                None => {
                    self.files.push(HeldFile::create(&path, name).map_err(failed)?);
                    self.files.len() - 1
                }
            };
            if self.files[at].content.as_ref() != Some(&self.next) {
                self.writes += 1;
                self.files[at].become_like(&mut self.next).map_err(failed)?;
            }
        }
        Ok(())
    }
}

impl HeldFile {
    fn create(path: &Path, name: &str) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            // Images of recipes may lie in a folder of their own.
            std::fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Self { name: name.to_string(), file, content: None })
    }

    /// Writes `next`. Leaves a used snapshot in `next`.
    fn become_like(&mut self, next: &mut FileContent) -> io::Result<()> {
        let old = self.content.take();
        // The holes of the new file are not those of the old one: an engine may ask the system for them.
        self.file.set_len(0)?;
        self.file.set_len(next.length_bytes)?;
        let mut from = 0;
        for (offset, length) in &next.parts {
            // A part may end behind the file, because it has whole grains.
            let left = next.length_bytes.saturating_sub(*offset);
            let kept = usize::try_from(left).unwrap_or(usize::MAX).min(*length);
            self.file.write_all_at(&next.bytes[from..][..kept], *offset)?;
            from += length;
        }
        self.content = Some(std::mem::replace(next, old.unwrap_or_default()));
        Ok(())
    }
}

impl FileContent {
    /// Takes the content of `storage`, at most `most` bytes. Returns the number of bytes that are left of `most`;
    /// `None` if the file stores more than `most`.
    fn take(
        &mut self,
        storage: &impl Storage,
        most: u64,
        scratch: &mut [u8],
    ) -> Result<Option<u64>, StorageError> {
        self.parts.clear();
        self.bytes.clear();
        self.length_bytes = storage.length_bytes();
        let grains = self.length_bytes.checked_next_multiple_of(GRAIN_BYTES);
        let end = HostOffset::new(grains.unwrap_or(u64::MAX - (GRAIN_BYTES - 1)));
        let taken =
            each_data::<_, StorageError>(storage, HostOffset::ZERO..end, scratch, |data| {
                if (self.bytes.len() as u64).saturating_add(data.bytes.len() as u64) > most {
                    return Ok(std::ops::ControlFlow::Break(()));
                }
                let (offset, length) = (data.offset.get(), data.bytes.len());
                match self.parts.last_mut() {
                    // Fewer and longer parts are fewer writes.
                    Some((start, before)) if *start + *before as u64 == offset => *before += length,
                    _ => self.parts.push((offset, length)),
                }
                self.bytes.extend_from_slice(data.bytes);
                Ok(std::ops::ControlFlow::Continue(()))
            })?;
        Ok(taken.is_continue().then(|| most - self.bytes.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use crate::images::files::image::Image;

    use super::*;

    /// Returns an image of 1 TiB, the last byte not in a grain, with `byte` at some places.
    fn sparse(byte: u8) -> Image {
        let mut image = Image::default();
        image.write(HostOffset::new(0), &[byte; 32]);
        image.write(HostOffset::new(1 << 39), &[byte; 32]);
        image.seal((1 << 40) + 3);
        image
    }

    fn hold(folder: &mut ChainFolder, files: &[(&str, &Image)]) -> Result<(), ChainFolderError> {
        folder.hold(files.iter().copied())
    }

    #[test]
    fn files_are_sparse_and_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = ChainFolder::new(dir.path(), 1 << 20);
        for (byte, size) in [(7, 1 << 20), (9, 1 << 20)] {
            hold(&mut folder, &[("a", &sparse(byte))]).unwrap();
            let path = folder.path_of("a");
            let storage = crate::disk::storage::FileStorage::open(&path).unwrap();
            assert_eq!(storage.length_bytes(), (1 << 40) + 3);
            let mut bytes = [1; 48];
            storage.read_at(HostOffset::new(1 << 39), &mut bytes).unwrap();
            assert_eq!(bytes, std::array::from_fn(|at| if at < 32 { byte } else { 0 }));
            assert!(path.metadata().unwrap().blocks() * 512 < size);
        }
        // A file that is shorter has nothing of the longer one.
        let mut short = Image::default();
        short.write(HostOffset::new(16), &[1; 4]);
        short.seal(20);
        hold(&mut folder, &[("a", &short)]).unwrap();
        let content = std::fs::read(folder.path_of("a")).unwrap();
        assert_eq!(content, [[0; 16].as_slice(), &[1; 4]].concat());
    }

    #[test]
    fn files_that_do_not_change_are_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = ChainFolder::new(dir.path(), 1 << 20);
        hold(&mut folder, &[("a", &sparse(1)), ("b", &sparse(2))]).unwrap();
        let other = std::fs::write(folder.path_of("a"), "changed by the test");
        other.unwrap();
        hold(&mut folder, &[("a", &sparse(1)), ("b", &sparse(3))]).unwrap();
        assert_eq!(std::fs::read(folder.path_of("a")).unwrap(), b"changed by the test");
    }

    #[test]
    fn too_many_bytes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        // An image stores 64 bytes.
        let mut folder = ChainFolder::new(dir.path(), 100);
        let error = hold(&mut folder, &[("a", &sparse(1)), ("b", &sparse(2))]).unwrap_err();
        assert!(matches!(error, ChainFolderError::TooLarge { .. }), "{error}");
        hold(&mut folder, &[("a", &sparse(1))]).unwrap();
    }

    #[test]
    fn a_file_that_exists_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "mine").unwrap();
        let mut folder = ChainFolder::new(dir.path(), 1 << 20);
        let error = hold(&mut folder, &[("a", &sparse(1))]).unwrap_err();
        assert!(matches!(error, ChainFolderError::File { .. }), "{error}");
        assert_eq!(std::fs::read(dir.path().join("a")).unwrap(), b"mine");
    }
}
