//! vmdk-core 0.8.4, library name `vmdk`: reads VMDK images in one file.

use std::io::{Read, Seek, SeekFrom};

use vmdk::{VmdkError, VmdkReader};

use qcowfuzz::prelude::*;

/// The crate.
#[derive(Clone, Debug, Default)]
pub struct VmdkCore;

/// An image that the crate has opened.
struct VmdkCoreDisk(VmdkReader<ChainStream>);

impl Engine for VmdkCore {
    describe!(
        "vmdk_core",
        version: "0.8.4",
        yes: [Vmdk, LoneCowd],
        no: [Qcow2],
        known: include_str!("../findings/vmdk_core.toml"));

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let opened = VmdkReader::open(ChainStream::new(chain.image()));
        let disk = opened.map_err(|error| match error {
            VmdkError::UnsupportedVersion(_)
            | VmdkError::CompressedNotSupported
            | VmdkError::UnsupportedDiskType(_) => EngineError::unsupported(error),
            error => EngineError::untyped(error),
        });
        Ok(Box::new(VmdkCoreDisk(disk?)))
    }
}

impl OpenDisk for VmdkCoreDisk {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.0.virtual_disk_size()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.seek(SeekFrom::Start(guest.get()))?;
        Ok(self.0.read_exact(into)?)
    }
}
