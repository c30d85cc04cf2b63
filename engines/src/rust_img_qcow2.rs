//! rust-img-qcow2 0.6.1, library name `img_qcow2`: images in memory, and chains by their paths.

use img_qcow2::{ClusterStatus, Error, Qcow2Reader};

use qcowfuzz::prelude::*;

use crate::fs_core_device::Device;

/// The crate.
#[derive(Clone, Debug, Default)]
pub struct RustImgQcow2(ChainFiles);

/// A chain that the crate has opened.
struct RustImgQcow2Disk(Qcow2Reader);

impl Engine for RustImgQcow2 {
    // The crate documents the first two. It opens every backing file as qcow2.
    describe!("rust_img_qcow2", version: "0.6.1", no: [OddBackingSize], refuses: [ExtendedL2, DataFile, RawBacking],
        size: Near, known: include_str!("../findings/rust_img_qcow2.toml"));

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let image = match chain.layers().len() {
            1 => Qcow2Reader::open_on_device(Device::new(chain)),
            _ => Qcow2Reader::open(self.0.write(chain)?),
        };
        Ok(Box::new(RustImgQcow2Disk(image.map_err(typed)?)))
    }
}

fn typed(error: Error) -> EngineError {
    match error {
        Error::Unsupported(_) => EngineError::unsupported(error),
        Error::Io(_) => EngineError::Io(error.into()),
        error => EngineError::untyped(error),
    }
}

impl OpenDisk for RustImgQcow2Disk {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.0.virtual_size()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.read_at(guest.get(), into).map_err(typed)
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        let status = match self.0.cluster_status_at(guest.get()).map_err(typed)? {
            ClusterStatus::Allocated => GuestStatus::Stored,
            ClusterStatus::Zero => GuestStatus::Zeros(None),
            ClusterStatus::Unallocated => GuestStatus::Below,
        };
        let left_in_cluster = self.0.cluster_size() - guest.get() % self.0.cluster_size();
        let length_bytes = left_in_cluster.min(self.0.virtual_size() - guest.get());
        Ok(GuestRun { length_bytes, status })
    }
}
