//! vhd-core 0.1.4, library name `vhd`: reads VHD images, and none with a parent.

use std::io::{Read, Seek, SeekFrom};

use vhd::{VhdError, VhdReader};

use qcowfuzz::prelude::*;

/// The longest file that the crate gets. It reads all of a file into memory, holes included, and files of programs have
/// terabytes of holes.
const MAX_FILE_BYTES: u64 = 192 << 20;

/// The crate.
#[derive(Clone, Debug, Default)]
pub struct VhdCore;

/// An image that the crate has opened.
struct VhdCoreDisk(VhdReader);

impl Engine for VhdCore {
    describe!(
        "vhd_core",
        version: "0.1.4",
        yes: [Vpc],
        no: [Qcow2],
        size: Near, known: include_str!("../findings/vhd_core.toml"));

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        if chain.image().length_bytes() > MAX_FILE_BYTES {
            return Err(EngineError::NotGiven("a file of more than 192 MiB".into()));
        }
        let opened = VhdReader::open_reader(Box::new(ChainStream::new(chain.image())));
        let disk = opened.map_err(|error| match error {
            VhdError::DifferencingNotSupported => EngineError::unsupported(error),
            error => EngineError::untyped(error),
        });
        Ok(Box::new(VhdCoreDisk(disk?)))
    }
}

impl OpenDisk for VhdCoreDisk {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.0.virtual_disk_size()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.seek(SeekFrom::Start(guest.get()))?;
        Ok(self.0.read_exact(into)?)
    }
}
