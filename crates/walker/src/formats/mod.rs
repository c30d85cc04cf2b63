//! On-disk structures, decoded: a folder for each format, and the parts that they share.

pub mod anatomy;
pub mod entries;
pub mod error;
pub mod probe;
pub mod qcow2;
pub mod references;
pub mod vhdx;
pub mod vmdk;
pub mod vpc;
