//! The questions that a program can ask of the image that it built.

use crate::disk::extent::Window;
use crate::disk::offsets::GuestOffset;

/// What a program asks of the image that it built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The extents of a window.
    Walk(Window),
    /// The mapping of a byte.
    Lookup(GuestOffset),
    /// Data.
    Read {
        /// The first byte.
        start: GuestOffset,
        /// How many; they may reach past the end of the disk.
        length_bytes: u16,
    },
}
