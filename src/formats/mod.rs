//! On-disk structures, decoded. Each format has a folder.

pub mod qcow2;
