//! rust-img-vmdk 0.5.1, library name `img_vmdk`: reads VMDK images in one file.

use img_vmdk::{Error, VmdkReader};

use qcowfuzz::prelude::*;

use crate::fs_core_device::Device;

/// The crate.
#[derive(Clone, Debug, Default)]
pub struct RustImgVmdk;

/// An image that the crate has opened.
struct RustImgVmdkDisk(VmdkReader);

impl Engine for RustImgVmdk {
    // The crate documents that it refuses parents and extents in other files.
    describe!(
        "rust_img_vmdk",
        version: "0.5.1",
        yes: [Vmdk],
        no: [Qcow2],
        refuses: [Parents, Extents], known: include_str!("../findings/rust_img_vmdk.toml"));

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let disk = VmdkReader::open_on_device(Device::new(chain));
        Ok(Box::new(RustImgVmdkDisk(disk.map_err(typed)?)))
    }
}

fn typed(error: Error) -> EngineError {
    match error {
        Error::Unsupported(_) => EngineError::unsupported(error),
        Error::Io(error) => error.into(),
        error => EngineError::untyped(error),
    }
}

impl OpenDisk for RustImgVmdkDisk {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.0.virtual_size()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.read_at(guest.get(), into).map_err(typed)
    }
}
