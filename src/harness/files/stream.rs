//! The files of a chain as adapters of implementations need them: a file as a stream of `std::io`, and the failure to
//! write the files to a folder as an engine's error.

use std::io::{self, Read, Seek, SeekFrom};

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::harness::engine::EngineError;
use crate::harness::files::chain::{ChainFile, ChainFolderError};

/// A file of a chain that is read as `std::fs::File` is: nothing comes after its end.
#[derive(Clone, Debug)]
pub struct ChainStream {
    file: ChainFile,
    position: u64,
}

impl ChainStream {
    /// Creates a stream that begins at the first byte.
    pub fn new(file: &ChainFile) -> Self {
        Self { file: file.clone(), position: 0 }
    }
}

impl ChainFile {
    /// Fills `into` with the bytes of the file from `offset` on; past its end, with zeros.
    ///
    /// # Errors
    /// The read fails, because an oracle tests failing reads.
    pub fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        Ok(self.read_at(HostOffset::new(offset), into)?)
    }
}

impl Read for ChainStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // Past the end of the file, nothing is left; no buffer holds as much as `usize::MAX` bytes.
        let left = self.file.length_bytes().saturating_sub(self.position);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(into.len());
        self.file.read_exact_at(self.position, &mut into[..length])?;
        self.position += length as u64;
        Ok(length)
    }
}

impl Seek for ChainStream {
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

/// Only a failed read belongs to the image: an engine that reads the files itself has it, too.
impl From<ChainFolderError> for EngineError {
    fn from(error: ChainFolderError) -> Self {
        match error {
            ChainFolderError::Read(error) => Self::Storage(error),
            error => Self::NotGiven(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::files::chain::Chain;
    use crate::images::files::image::Image;

    #[test]
    fn a_stream_ends_with_its_file() {
        let mut image = Image::default();
        image.seal(6);
        let mut stream = ChainStream::new(Chain::alone(image).image());
        let mut bytes = Vec::new();
        assert_eq!(stream.seek(SeekFrom::Start(2)).unwrap(), 2);
        assert_eq!(stream.read_to_end(&mut bytes).unwrap(), 4);
        assert_eq!(stream.seek(SeekFrom::End(-1)).unwrap(), 5);
        assert_eq!(stream.seek(SeekFrom::Current(10)).unwrap(), 15);
        assert_eq!(stream.read(&mut [0; 4]).unwrap(), 0);
        assert!(stream.seek(SeekFrom::Start(1 << 63)).is_err());
        assert!(stream.seek(SeekFrom::Current(-16)).is_err());
    }
}
