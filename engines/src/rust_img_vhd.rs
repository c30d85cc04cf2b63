//! rust-img-vhd 0.6.1, library name `img_vhd`: reads VHD images. It finds a parent only by its path, and no program
//! builds one.

use img_vhd::{Error, VhdReader};

use qcowfuzz::prelude::*;

use crate::fs_core_device::Device;

/// The crate.
#[derive(Clone, Debug, Default)]
pub struct RustImgVhd;

/// An image that the crate has opened.
struct RustImgVhdDisk(VhdReader);

impl Engine for RustImgVhd {
    describe!(
        "rust_img_vhd",
        version: "0.6.1",
        yes: [Vpc],
        no: [Qcow2],
        size: Near, known: include_str!("../findings/rust_img_vhd.toml"));

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let disk = VhdReader::open_on_device(Device::new(chain));
        Ok(Box::new(RustImgVhdDisk(disk.map_err(typed)?)))
    }
}

fn typed(error: Error) -> EngineError {
    match error {
        Error::Unsupported(_) => EngineError::unsupported(error),
        Error::Io(error) => error.into(),
        error => EngineError::untyped(error),
    }
}

impl OpenDisk for RustImgVhdDisk {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.0.virtual_size()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.read_at(guest.get(), into).map_err(typed)
    }
}
