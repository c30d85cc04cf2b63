//! Public crates as engines, a file for each, and their shared helpers: the files of a chain as a stream, and as
//! files of a folder.

/// Defines the functions of `Engine` that describe a crate: its name, the features that it does not know, and those
/// that it refuses. Each crate here reports the size in the header, which may end inside a sector.
macro_rules! about {
    ($name:literal $(, no: [$($no:ident),*])?, refuses: [$($refused:ident),*]) => {
        fn name(&self) -> &str {
            $name
        }

        fn claims(&self) -> Claims {
            let claims = Claims::ALL.refuse_or_be_right(&[$(Feature::$refused),*]);
            $(let claims = claims.no(&[$(Feature::$no),*]);)?
            claims
        }

        fn policy(&self) -> EnginePolicy {
            EnginePolicy { size: SizePolicy::Near, ..EnginePolicy::default() }
        }
    };
}

pub mod fstool;
pub mod imago;
pub mod judge;
pub mod known;
pub mod qcow2_core;
pub mod qcow2_rs;
pub mod rust_img_qcow2;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use qcowfuzz::images::FileNames;
use tempfile::{TempDir, tempdir, tempdir_in};

use prelude::*;

/// The items that an engine uses.
pub mod prelude {
    pub use crate::{Answer, past_end, read_at};
    pub use qcowfuzz::disk::features::Feature;
    pub use qcowfuzz::disk::image_format::ImageFormat;
    pub use qcowfuzz::disk::offsets::{GuestOffset, HostOffset};
    pub use qcowfuzz::disk::storage::Storage;
    pub use qcowfuzz::harness::chain::{Chain, ChainFile, ChainLayer};
    pub use qcowfuzz::harness::claims::{Claims, EnginePolicy, SizePolicy};
    pub use qcowfuzz::harness::engine::{Engine, EngineError, OpenDisk};
    pub use qcowfuzz::harness::status::{GuestRun, GuestStatus};
}

/// The result of a question to an engine.
pub type Answer<T = ()> = Result<T, EngineError>;

/// Fills `into` with the bytes of `file` from `offset` on; past the end, with zeros.
///
/// # Errors
/// The read fails, as the oracle `io` wants it to.
pub fn read_at(file: &ChainFile, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let read = file.read_at(HostOffset::new(offset), into);
    read.map_err(|error| io::Error::new(error.kind, error))
}

/// Returns the answer to a question about a byte past the end of the disk.
pub fn past_end(guest: GuestOffset, virtual_size: u64) -> EngineError {
    EngineError::PastEnd { guest, virtual_size }
}

/// A file of a chain that is read as `std::fs::File` is: nothing comes after its end.
#[derive(Debug)]
pub struct Stream {
    file: ChainFile,
    position: u64,
}

impl Stream {
    /// Creates a stream that begins at the first byte.
    pub fn new(file: &ChainFile) -> Self {
        Self { file: file.clone(), position: 0 }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.file.length_bytes().saturating_sub(self.position);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(into.len());
        read_at(&self.file, self.position, &mut into[..length])?;
        self.position += length as u64;
        Ok(length)
    }
}

impl Seek for Stream {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
            SeekFrom::End(distance) => self.file.length_bytes().checked_add_signed(distance),
        };
        // The system has offsets of 63 bits.
        let position = position.filter(|position| i64::try_from(*position).is_ok());
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

/// Creates a folder for the files of a chain, in memory where the system has a place for that: disks that are longer
/// than other file systems allow are normal.
///
/// # Errors
/// The folder cannot be created.
pub fn folder() -> io::Result<TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempdir_in(memory) } else { tempdir() }
}

/// Writes the files of `chain` to `folder`, with the names that the images have for each other. Returns the path of
/// the image to open.
///
/// # Errors
/// A read of the chain fails, or a file cannot be written.
pub fn write_files(chain: &Chain, folder: &Path) -> io::Result<PathBuf> {
    let (names, layers) = (FileNames::default(), chain.layers());
    for (depth, layer) in layers.iter().enumerate() {
        let height = layers.len() - 1 - depth;
        let image = names.image(height, layer.format == ImageFormat::Raw);
        write_file(&layer.image, &folder.join(image))?;
        if let Some(data_file) = &layer.data_file {
            write_file(data_file, &folder.join(names.data_file(height)))?;
        }
    }
    Ok(folder.join(names.image(layers.len() - 1, false)))
}

/// Writes a file with its holes.
fn write_file(from: &ChainFile, path: &Path) -> io::Result<()> {
    let (to, mut scratch) = (File::create_new(path)?, vec![0; 64 << 10]);
    let end = HostOffset::new(from.length_bytes().next_multiple_of(16));
    let mut at = HostOffset::ZERO;
    while let Some(data) =
        from.next_data(at, end, &mut scratch).map_err(|error| io::Error::new(error.kind, error))?
    {
        to.write_all_at(data.bytes, data.offset.get())?;
        at = data.offset.saturating_add(data.bytes.len() as u64);
    }
    to.set_len(from.length_bytes())
}
