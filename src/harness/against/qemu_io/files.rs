//! The files in memory that QEMU opens under their names: those of a chain, and one with the data that the engine
//! reads, which QEMU's driver blkverify compares with the image. They are reused from image to image.
//!
//! # Arithmetic
//! An offset that is held at 2^64 - 1 lies past the end of every file.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::disk::error::StorageError;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{PIECE_BYTES, Storage, each_data};
use crate::harness::ChainFiles;
use crate::harness::against::second_opinion::ReadDisk;
use crate::harness::engine::{EngineError, ErrorKind};
use crate::harness::files::chain::{Chain, ChainFile, ChainFolder};

use super::answers::has_many_snapshots;
use super::session::fail;

/// The largest number of stored bytes of a chain, all files together.
const MAX_HELD_BYTES: usize = 64 << 20;
/// Parts of a file that are no farther apart are written at once, with zeros between them.
const MAX_BRIDGED_BYTES: u64 = 512;
/// The number of bytes that are written at once.
const MAX_WRITTEN_BYTES: usize = 256 << 10;

/// A file in memory.
#[derive(Debug)]
struct MemoryFile {
    file: File,
    /// The name by which another process opens it.
    path: String,
    #[cfg(not(target_os = "linux"))]
    _file: tempfile::NamedTempFile,
}

impl MemoryFile {
    #[cfg(target_os = "linux")]
    fn create() -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        let file = rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC)?;
        let file = File::from(file);
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Ok(Self { file, path })
    }

    #[cfg(not(target_os = "linux"))]
    fn create() -> io::Result<Self> {
        let named = tempfile::NamedTempFile::new()?;
        let path = named.path().to_string_lossy().into_owned();
        Ok(Self { file: named.reopen()?, path, _file: named })
    }

    /// Creates a file. If the system refuses it, no image is to blame.
    pub(super) fn new() -> Self {
        Self::create().unwrap_or_else(|error| fail(&format!("a file in memory: {error}")))
    }

    /// Returns the name by which another process opens the file.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Removes all bytes, and gives the file this length. All of it is a hole.
    pub(super) fn clear(&self, length_bytes: u64) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.set_len(length_bytes)
    }

    /// Writes bytes.
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }
}

/// The files of one chain at a time.
#[derive(Debug, Default)]
pub(super) struct ChainInMemory {
    files: Vec<MemoryFile>,
    /// The number of files that the chain has.
    live: usize,
    /// The files of a chain whose names lead QEMU from file to file.
    folder: ChainFiles,
    is_in_folder: bool,
    /// QEMU follows the names of lower layers and data files, too.
    names_all: bool,
    scratch: Vec<u8>,
    /// Bytes that are not written yet.
    pending: Vec<u8>,
}

/// The reason why a chain is not in memory.
enum NotHeld {
    /// Its files store too much.
    TooLarge,
    /// The system refuses the length of a file, or a read of the chain fails.
    Refused,
}

impl From<StorageError> for NotHeld {
    fn from(_: StorageError) -> Self {
        Self::Refused
    }
}

impl From<io::Error> for NotHeld {
    fn from(_: io::Error) -> Self {
        Self::Refused
    }
}

impl ChainInMemory {
    /// Takes the files of `chain`. Returns false if they are too large, or an image has too many snapshots. If
    /// `is_damaged`, an image may no longer name the files below it, or other formats for them, so QEMU follows the
    /// names.
    pub(super) fn hold(&mut self, chain: &Chain, is_damaged: bool) -> bool {
        self.live = 0;
        if chain.layers().iter().any(has_many_snapshots) {
            return false;
        }
        self.names_all = is_damaged && chain.has_other_files();
        let has_extents = chain.layers().iter().any(|layer| !layer.extents.is_empty());
        self.is_in_folder = self.names_all || has_extents;
        if self.is_in_folder {
            return self.folder.write(chain).is_ok();
        }
        let mut left = MAX_HELD_BYTES;
        for layer in chain.layers() {
            for file in [&layer.image].into_iter().chain(&layer.data_file) {
                match self.take(file, left) {
                    Ok(rest) => left = rest,
                    Err(NotHeld::TooLarge | NotHeld::Refused) => return false,
                }
            }
        }
        true
    }

    /// Returns the folder in which QEMU looks for a data file.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.folder.folder().map(ChainFolder::path)
    }

    /// Takes a file that stores at most `most` bytes. Returns how many more the limit allows.
    fn take(&mut self, storage: &ChainFile, most: usize) -> Result<usize, NotHeld> {
        if self.files.len() == self.live {
            self.files.push(MemoryFile::new());
        }
        let Self { files, live, scratch, pending, .. } = self;
        let Some(file) = files.get(*live) else { return Err(NotHeld::Refused) };
        *live += 1;
        scratch.resize(PIECE_BYTES, 0);
        let length_bytes = storage.length_bytes();
        file.clear(length_bytes)?;
        pending.clear();
        let (mut start, mut left) = (0, most);
        let all = HostOffset::ZERO..HostOffset::new(length_bytes);
        let taken = each_data::<_, NotHeld>(storage, all, scratch, |data| {
            let offset = data.offset.get();
            // The data may end behind the file, because they have whole grains.
            let there = length_bytes.saturating_sub(offset);
            let there = usize::try_from(there).unwrap_or(usize::MAX).min(data.bytes.len());
            left = left.checked_sub(there).ok_or(NotHeld::TooLarge)?;
            let end = start + pending.len() as u64;
            let gap = offset.saturating_sub(end);
            if gap > MAX_BRIDGED_BYTES || pending.len() > MAX_WRITTEN_BYTES || pending.is_empty() {
                file.write(pending, start)?;
                pending.clear();
                start = offset;
            } else {
                pending.resize(pending.len() + gap as usize, 0);
            }
            pending.extend_from_slice(&data.bytes[..there]);
            Ok(std::ops::ControlFlow::Continue(()))
        });
        let _ = taken?;
        file.write(pending, start)?;
        Ok(left)
    }

    /// Adds the chain to `line`, as a block device of QEMU: an object of JSON without spaces. It names every file, so
    /// that QEMU follows no name in an image, except for the names of VMDK extents, which no option can replace, and
    /// for names in damaged images.
    pub(super) fn write_device(&self, chain: &Chain, line: &mut String) {
        let mut memory = self.files.iter().map(MemoryFile::path);
        let folder = self.folder.folder().filter(|_| self.is_in_folder);
        let layers = if self.names_all { &chain.layers()[..1] } else { chain.layers() };
        for (depth, layer) in layers.iter().enumerate() {
            let separator = if depth == 0 { "" } else { ",\"backing\":" };
            // A string takes everything.
            let _ = write!(line, "{separator}{{\"driver\":\"{}\"", layer.format.name());
            let mut file = |key: &str, name: &str| {
                let in_folder = folder.map(|folder| folder.path_of(name));
                let _ = write!(line, ",\"{key}\":{{\"driver\":\"file\",\"locking\":\"off\",");
                let _ = match &in_folder {
                    Some(path) => write!(line, "\"filename\":\"{}\"}}", path.display()),
                    None => {
                        write!(line, "\"filename\":\"{}\"}}", memory.next().unwrap_or_default())
                    }
                };
            };
            file("file", layer.name());
            if let Some(data_file) = layer.data_file.as_ref().filter(|_| !self.names_all) {
                file("data-file", data_file.name());
            }
        }
        if !self.names_all
            && layers.last().is_some_and(|last| last.format.facts().has_backing_files)
        {
            line.push_str(",\"backing\":null");
        }
        layers.iter().for_each(|_| line.push('}'));
    }
}

/// The number of bytes that the engine reads at once.
const READ_CHUNK_BYTES: usize = 64 << 10;
/// The unit in which bytes that are all zeros stay a hole of the file.
const PIECE_OF_ZEROS_BYTES: usize = 4096;

/// A part of the disk that the engine reads, or does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadPart {
    /// The guest bytes.
    pub(super) range: Range<u64>,
    /// The engine reads all of them. If false, it reads some or none.
    pub(super) is_readable: bool,
}

/// The data of a disk, in a file.
#[derive(Debug)]
pub(super) struct EngineData {
    file: MemoryFile,
    chunk: Vec<u8>,
    parts: Vec<ReadPart>,
}

impl EngineData {
    pub(super) fn new() -> Self {
        Self { file: MemoryFile::new(), chunk: vec![0; READ_CHUNK_BYTES], parts: Vec::new() }
    }

    /// Returns the name by which another process opens the file.
    pub(super) fn path(&self) -> &str {
        self.file.path()
    }

    /// Returns the parts of the disk, in order.
    pub(super) fn parts(&self) -> &[ReadPart] {
        &self.parts
    }

    /// Reads the `windows` of a disk, and puts their bytes into the file, at their place on the disk. The file gets
    /// `length_bytes`.
    ///
    /// # Errors
    /// The system refuses the file.
    pub(super) fn read(
        &mut self,
        length_bytes: u64,
        windows: &[Range<u64>],
        read: &mut ReadDisk<'_>,
    ) -> io::Result<()> {
        let Self { file, chunk, parts } = self;
        file.clear(length_bytes)?;
        parts.clear();
        for window in windows {
            for start in window.clone().step_by(READ_CHUNK_BYTES) {
                let end = window.end.min(start.saturating_add(READ_CHUNK_BYTES as u64));
                let length = usize::try_from(end - start).unwrap_or(READ_CHUNK_BYTES);
                let bytes = &mut chunk[..length];
                let is_readable = match read(GuestOffset::new(start), bytes) {
                    Ok(()) => true,
                    Err(error) if is_unanswered(&error) => {
                        parts.clear();
                        return Ok(());
                    }
                    Err(_) => false,
                };
                match parts.last_mut() {
                    Some(last) if is_readable && last.is_readable && last.range.end == start => {
                        last.range.end = end;
                    }
                    _ => parts.push(ReadPart { range: start..end, is_readable }),
                }
                if is_readable {
                    write_pages(file, bytes, start)?;
                }
            }
        }
        Ok(())
    }
}

/// Reports whether the engine reads no data at all.
fn is_unanswered(error: &EngineError) -> bool {
    error.kind() == ErrorKind::NoAnswer
}

/// Writes the pages that are not all zeros.
fn write_pages(file: &MemoryFile, bytes: &[u8], start: u64) -> io::Result<()> {
    let mut at = start;
    for page in bytes.chunks(PIECE_OF_ZEROS_BYTES) {
        if page.iter().fold(0, |any, byte| any | byte) != 0 {
            file.write(page, at)?;
        }
        at += page.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::images::files::image::Image;

    use super::*;

    fn image(byte: u8, length_bytes: u64) -> Image {
        let mut image = Image::default();
        for offset in [3, 40, 5000, 1 << 20] {
            image.write(HostOffset::new(offset), &[byte; 20]);
        }
        image.seal(length_bytes);
        image
    }

    fn held(files: &mut ChainInMemory, image: Image) -> Vec<u8> {
        let chain = Chain::alone(image);
        assert!(files.hold(&chain, false));
        let mut device = String::new();
        files.write_device(&chain, &mut device);
        let device: serde_json::Value = serde_json::from_str(&device).unwrap();
        assert!(device["driver"] == "qcow2" && device["backing"].is_null());
        std::fs::read(device["file"]["filename"].as_str().unwrap()).unwrap()
    }

    #[test]
    fn files_hold_the_bytes_of_the_last_chain() {
        let mut files = ChainInMemory::default();
        for (byte, length_bytes) in [(1, 3 << 20), (2, (1 << 20) + 23)] {
            let image = image(byte, length_bytes);
            let mut expected = vec![0; length_bytes as usize];
            image.read_at(HostOffset::ZERO, &mut expected).unwrap();
            assert!(held(&mut files, image) == expected);
        }
        assert_eq!(files.files.len(), 1);
    }

    #[test]
    fn a_chain_that_stores_too_much_is_not_held() {
        let mut files = ChainInMemory::default();
        let mut large = Image::default();
        for piece in 0..=64 {
            large.place(HostOffset::new(piece << 20), 1 << 20).fill(1);
        }
        large.seal(0);
        assert!(!files.hold(&Chain::alone(large), false));
        let mut long = Image::default();
        long.seal(u64::MAX);
        assert!(!files.hold(&Chain::alone(long), false));
    }
}
