//! The data that the engine reads, in a file for QEMU's driver blkverify, which compares it with an image.

use std::io;
use std::ops::Range;

use crate::disk::offsets::GuestOffset;
use crate::harness::against::second_opinion::ReadDisk;
use crate::harness::engine::{EngineError, ErrorKind};

use super::files::MemoryFile;

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
