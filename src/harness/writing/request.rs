//! The requests that an engine carries out.

use crate::disk::offsets::GuestOffset;

/// A request to a disk that is open for writing. Its range lies on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRequest {
    /// Writes bytes that no other request writes.
    Write {
        /// The first byte.
        guest: GuestOffset,
        /// The number of bytes.
        length_bytes: u32,
    },
    /// Makes a range read as zeros.
    WriteZeroes {
        /// The first byte.
        guest: GuestOffset,
        /// The number of bytes.
        length_bytes: u64,
    },
    /// Frees whole clusters, which then read as zeros.
    Discard {
        /// The first byte, at the edge of a cluster.
        guest: GuestOffset,
        /// The number of bytes: whole clusters, or all up to the end of the disk.
        length_bytes: u64,
    },
    /// Gives the disk another size.
    Resize {
        /// The new size in bytes.
        size_bytes: u64,
    },
    /// Closes the image, and opens it again.
    Reopen,
}
