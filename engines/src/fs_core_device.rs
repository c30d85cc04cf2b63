//! The file of an image as a device of rust-fs-core, which the four crates rust-img-… open.

use std::sync::Arc;

use fs_core::{BlockDevice, BlockRead};

use qcowfuzz::prelude::*;

/// The first image of a chain. A read past its end is short, as that of the crate's own devices.
pub(crate) struct Device(ChainFile);

impl Device {
    /// Returns the device of the image to open.
    pub(crate) fn new(chain: &Chain) -> Arc<Self> {
        Arc::new(Self(chain.image().clone()))
    }
}

impl BlockRead for Device {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> fs_core::Result<()> {
        let left = self.0.length_bytes().saturating_sub(offset);
        let got = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.0.read_exact_at(offset, &mut into[..got])?;
        match into.len() {
            want if want > got => Err(fs_core::Error::ShortRead { offset, want, got }),
            _ => Ok(()),
        }
    }

    fn size_bytes(&self) -> u64 {
        self.0.length_bytes()
    }
}

impl BlockDevice for Device {}
