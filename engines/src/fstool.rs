//! fstool 0.5.2: images and chains by their paths, read and written.

use fstool::Error;
use fstool::block::BlockDevice;
use fstool::block::qcow2::Qcow2Backend;

use qcowfuzz::prelude::*;

/// The crate.
#[derive(Clone, Debug, Default)]
pub struct Fstool(ChainFiles);

/// A chain that the crate has opened, and the files to pass back if it may write to them.
struct FstoolDisk(Qcow2Backend, Option<LentFiles>);

impl Engine for Fstool {
    // The crate refuses each of these by name.
    describe!(
        "fstool",
        version: "0.5.2",
        no: [OddBackingSize],
        refuses: [
            Refcounts1, Refcounts2, Refcounts4, Refcounts8, Refcounts32, Refcounts64, ExtendedL2,
            DataFile, Dirty, Corrupt
        ],
        size: Near, known: include_str!("../findings/fstool.toml"), no_writes: [Cuts, FileErrors, Snapshots]);

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let image = Qcow2Backend::open_read_only(self.0.write(chain)?);
        Ok(Box::new(FstoolDisk(image.map_err(typed)?, None)))
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let files = self.0.lend(chain)?;
        let image = Qcow2Backend::open(files.path()).map_err(typed)?;
        Ok(Box::new(FstoolDisk(image, Some(files))))
    }
}

fn typed(error: Error) -> EngineError {
    match error {
        Error::Unsupported(_) => EngineError::unsupported(error),
        error => EngineError::untyped(error),
    }
}

impl OpenDisk for FstoolDisk {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.0.total_size()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.read_at(guest.get(), into).map_err(typed)
    }

    fn request(&mut self, request: &Request) -> Answer {
        match *request {
            Request::Write { guest, bytes } => self.0.write_at(guest.get(), bytes).map_err(typed),
            Request::WriteZeroes { guest, length_bytes } => {
                self.0.zero_range(guest.get(), length_bytes).map_err(typed)
            }
            Request::Flush => {
                self.0.sync().map_err(typed)?;
                self.1.as_ref().map_or(Ok(()), LentFiles::flush)
            }
            _ => Err(EngineError::NoAnswer),
        }
    }

    fn close(self: Box<Self>) -> Answer {
        let Self(mut image, files) = *self;
        let Some(files) = files else { return Ok(()) };
        image.sync().map_err(typed)?;
        drop(image);
        files.pass_back()
    }
}
