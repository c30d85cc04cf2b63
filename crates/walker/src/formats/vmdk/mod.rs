//! The VMDK format (VMware, "Virtual Disk Format 5.0"), and the two formats of extents that ESX writes. All numbers in
//! a file are little-endian, and offsets are in sectors.
//!
//! A disk consists of extents. An image is one sparse extent, or a descriptor: a text that names the files of the
//! extents.
//!
//! The answers are those of QEMU 10.0.2, with these exceptions:
//!
//! - If an extent before others ends inside a grain, QEMU gives the whole grain to it, and a query that begins behind
//!   its end to the next extent. This walker does so, too, but asks a parent in longer pieces than QEMU.
//! - An extent of 2^63 sectors or more, which moves later extents to the front in QEMU, is refused; so is a descriptor
//!   in the file of an extent, which QEMU opens again and again if it names itself. A disk of 2^63 bytes or more is
//!   refused, too: QEMU opens some of them, and can check them, but neither map nor read them.
//! - An ESX extent by whose grain tables QEMU divides by zero, or whose tables map more than 2^32 sectors, is an error
//!   where it is walked.
//! - QEMU prints host offsets of 2^63 and more as negative numbers, and cannot read them.

pub mod anatomy;
mod check;
pub mod constants;
pub mod cowd_header;
pub mod descriptor;
mod extent;
pub mod facts;
pub mod footer;
pub mod grain;
pub mod head;
mod inflate;
mod layer;
mod open;
mod scan;
pub mod sesparse;
pub mod sesparse_entry;
pub mod sparse_header;
mod spelled;
pub mod tables;
mod walk;

pub(crate) use open::Vmdk;
