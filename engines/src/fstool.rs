//! fstool 0.5.2: images and chains by their paths.

use fstool::Error;
use fstool::block::BlockDevice;
use fstool::block::qcow2::Qcow2Backend;

use qcowfuzz::prelude::*;

/// The crate.
#[derive(Clone, Debug, Default)]
pub struct Fstool(ChainFiles);

/// A chain that the crate has opened.
struct FstoolDisk(Qcow2Backend);

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
        size: Near, known: include_str!("../findings/fstool.toml"));

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let image = Qcow2Backend::open_read_only(self.0.write(chain)?);
        Ok(Box::new(FstoolDisk(image.map_err(typed)?)))
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
