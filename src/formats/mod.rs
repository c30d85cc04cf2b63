//! On-disk structures, decoded: a folder for each format.

pub mod qcow2;
