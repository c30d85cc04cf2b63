//! The VHDX format: headers, region table, metadata, block allocation table and log. All numbers are little-endian.
//! QEMU does not distinguish dynamic and fixed disks. It refuses a disk with a parent, and one whose log has to be
//! replayed.

pub mod anatomy;
pub mod block_table;
mod blocks;
pub mod checksum;
pub mod constants;
pub mod header;
pub mod log;
pub mod metadata;
mod open;
pub mod region_table;
pub mod regions;
mod replay;
mod spelled;
#[cfg(test)]
mod tests;
mod walk;

pub(crate) use open::Vhdx;
