//! Walkers: from an image's bytes to extents, a folder for each format; and the chains of files that they open.

pub mod chain;
pub mod qcow2;
