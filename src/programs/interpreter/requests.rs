//! The requests of a program to an engine that writes.

use crate::programs::request::WriteRequest;

/// The requests of a program.
#[derive(Debug, Default)]
pub(super) struct Writing {
    pub(super) requests: Vec<WriteRequest>,
    /// The size of the disk after all requests; `None` before the writing.
    pub(super) size_bytes: Option<u64>,
    /// The number of bytes that requests may still change.
    pub(super) changeable_bytes: u64,
    /// The number of these bytes that requests may still write.
    pub(super) writable_bytes: u64,
}

impl Writing {
    /// Begins a program.
    pub(super) fn begin(&mut self, changeable_bytes: u64) {
        self.requests.clear();
        (self.size_bytes, self.changeable_bytes) = (None, changeable_bytes);
        self.writable_bytes = changeable_bytes / 16;
    }
}
