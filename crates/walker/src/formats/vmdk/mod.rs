//! The VMDK format (VMware, "Virtual Disk Format 5.0"), and the two formats of extents that ESX writes. All numbers in
//! a file are little-endian, and offsets are in sectors.
//!
//! A disk consists of extents. An image is one sparse extent, or a descriptor: a text that names the files of the
//! extents.

pub mod anatomy;
pub mod constants;
pub mod cowd_header;
pub mod descriptor;
pub mod footer;
pub mod grain;
pub mod head;
mod scan;
pub mod sesparse;
pub mod sesparse_entry;
pub mod sparse_header;
pub mod tables;
