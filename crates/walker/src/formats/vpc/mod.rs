//! The VHD format (Microsoft, "Virtual Hard Disk Image Format Specification", version 1.0), which QEMU calls vpc. All
//! numbers in a file are big-endian. QEMU opens a differencing disk as if it had no parent.

pub mod anatomy;
pub mod constants;
pub mod dynamic_header;
pub mod footer;
mod open;
mod spelled;
mod walk;

pub(crate) use open::Vpc;
