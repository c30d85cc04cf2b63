//! fstool 0.5.2: images and chains by their paths.

use fstool::Error;
use fstool::block::BlockDevice;
use fstool::block::qcow2::Qcow2Backend;
use tempfile::TempDir;

use crate::prelude::*;
use crate::{folder, write_files};

/// The crate.
#[derive(Debug, Default)]
pub struct Fstool;

/// A chain that the crate has opened, and the folder with its files.
pub struct FstoolDisk(Qcow2Backend, #[expect(dead_code, reason = "holds the files")] TempDir);

impl Engine for Fstool {
    type Disk<'s> = FstoolDisk;

    // The crate refuses each of these by name.
    about!(
        "fstool",
        refuses: [
            Refcounts1, Refcounts2, Refcounts4, Refcounts8, Refcounts32, Refcounts64,
            ExtendedL2, DataFile, Dirty, Corrupt
        ]
    );

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Answer<FstoolDisk> {
        let files = folder()?;
        let image = Qcow2Backend::open_read_only(write_files(chain, files.path())?);
        Ok(FstoolDisk(image.map_err(typed)?, files))
    }
}

fn typed(error: Error) -> EngineError {
    match error {
        Error::Unsupported(_) => EngineError::unsupported(error),
        error => EngineError::untyped(error),
    }
}

impl OpenDisk for FstoolDisk {
    fn virtual_size_bytes(&self) -> u64 {
        self.0.total_size()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.read_at(guest.get(), into).map_err(typed)
    }
}
