//! The campaign that compares our answers about disk images with those of QEMU.

pub mod reason;
