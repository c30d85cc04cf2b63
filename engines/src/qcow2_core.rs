//! qcow2-core 0.3.4, library name `qcow2`: reads single images.

use std::io::{Read, Seek, SeekFrom};

use qcow2::{Qcow2Error, Qcow2Reader};

use qcowfuzz::prelude::*;

/// The crate.
#[derive(Clone, Debug, Default)]
pub struct Qcow2Core;

/// An image that the crate has opened.
struct Qcow2CoreDisk(Qcow2Reader);

impl Engine for Qcow2Core {
    // The crate documents that it refuses each of these.
    describe!(
        "qcow2_core",
        version: "0.3.4",
        refuses: [Clusters2M, ExtendedL2, Zstd, Qcow2Backing, RawBacking, DataFile, LargeL1],
        size: Near, known: include_str!("../findings/qcow2_core.toml"));

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let opened = Qcow2Reader::from_reader(ChainStream::new(chain.image()));
        let disk = opened.map_err(|error| match error {
            Qcow2Error::BackingFileNotSupported
            | Qcow2Error::UnsupportedIncompatibleFeatures(_)
            | Qcow2Error::ClusterBitsOutOfRange(_)
            | Qcow2Error::L1TableTooLarge(_) => EngineError::unsupported(error),
            error => EngineError::untyped(error),
        });
        Ok(Box::new(Qcow2CoreDisk(disk?)))
    }
}

impl OpenDisk for Qcow2CoreDisk {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.0.virtual_disk_size()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.seek(SeekFrom::Start(guest.get()))?;
        Ok(self.0.read_exact(into)?)
    }
}
