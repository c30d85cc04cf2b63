//! vhdx-core 0.4.1, library name `vhdx`: reads VHDX images.

use std::io::{Read, Seek, SeekFrom};

use vhdx::{VhdxError, VhdxReader};

use qcowfuzz::prelude::*;

/// The crate.
#[derive(Clone, Debug, Default)]
pub struct VhdxCore;

/// An image that the crate has opened.
struct VhdxCoreDisk(VhdxReader);

impl Engine for VhdxCore {
    describe!("vhdx_core", version: "0.4.1", yes: [Vhdx], no: [Qcow2],
        known: include_str!("../findings/vhdx_core.toml"));

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let opened = VhdxReader::open_reader(Box::new(ChainStream::new(chain.image())));
        let disk = opened.map_err(|error| match error {
            VhdxError::DifferencingNotSupported => EngineError::unsupported(error),
            error => EngineError::untyped(error),
        });
        Ok(Box::new(VhdxCoreDisk(disk?)))
    }
}

impl OpenDisk for VhdxCoreDisk {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.0.virtual_disk_size()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.seek(SeekFrom::Start(guest.get()))?;
        Ok(self.0.read_exact(into)?)
    }
}
