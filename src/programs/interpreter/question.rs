//! The questions that a program can ask of the image that it built.

use crate::disk::extent::Window;
use crate::disk::offsets::GuestOffset;

/// A question of the program about the image that it built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The extents of a window.
    Walk(Window),
    /// The mapping of a byte.
    Lookup(GuestOffset),
    /// The data of a range.
    Read {
        /// The first byte of the range.
        start: GuestOffset,
        /// The length of the range, which may reach past the end of the disk.
        length_bytes: u16,
    },
}
