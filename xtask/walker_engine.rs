//! Our walker as the engine.

use qcowfuzz::harness::Walker;
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
struct MyDisk<'s>(Box<dyn OpenDisk + 's>);

impl Engine for MyEngine {
    describe!("walker");

    /// The walker keeps clusters for the rest of a run.
    fn begin_run(&mut self) {
        self.walker.begin_run();
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        Ok(Box::new(MyDisk(self.walker.open(chain)?)))
    }
}

impl OpenDisk for MyDisk<'_> {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.0.virtual_size_bytes()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.read(guest, into)
    }
}
