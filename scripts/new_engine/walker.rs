//! Our walker as the engine.

use qcowfuzz::harness::{Walker, WalkerDisk};
use qcowfuzz::prelude::*;

/// The implementation under test.
#[derive(Debug, Default)]
pub struct MyEngine {
    walker: Walker,
}

/// A copy begins with buffers of its own.
impl Clone for MyEngine {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// An image that it has opened.
pub struct MyDisk<'s>(WalkerDisk<'s>);

impl Engine for MyEngine {
    type Disk<'s> = MyDisk<'s>;

    describe!("walker");

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Answer<MyDisk<'s>> {
        Ok(MyDisk(self.walker.open(chain)?))
    }
}

impl OpenDisk for MyDisk<'_> {
    fn virtual_size_bytes(&self) -> u64 {
        self.0.virtual_size_bytes()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.read(guest, into)
    }
}
