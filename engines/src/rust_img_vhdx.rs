//! rust-img-vhdx 0.6.1, library name `img_vhdx`: reads VHDX images.

use img_vhdx::{Error, VhdxReader};

use qcowfuzz::prelude::*;

use crate::fs_core_device::Device;

/// The crate.
#[derive(Clone, Debug, Default)]
pub struct RustImgVhdx;

/// An image that the crate has opened.
struct RustImgVhdxDisk(VhdxReader);

impl Engine for RustImgVhdx {
    describe!("rust_img_vhdx", version: "0.6.1", yes: [Vhdx], no: [Qcow2],
        known: include_str!("../findings/rust_img_vhdx.toml"));

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let disk = VhdxReader::open_on_device(Device::new(chain));
        Ok(Box::new(RustImgVhdxDisk(disk.map_err(typed)?)))
    }
}

fn typed(error: Error) -> EngineError {
    match error {
        Error::Unsupported(_) => EngineError::unsupported(error),
        Error::Io(error) => error.into(),
        error => EngineError::untyped(error),
    }
}

impl OpenDisk for RustImgVhdxDisk {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.0.virtual_size()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.read_at(guest.get(), into).map_err(typed)
    }
}
