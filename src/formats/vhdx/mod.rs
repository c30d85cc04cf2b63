//! The VHDX format: headers, region table, metadata, block allocation table and log. All numbers are little-endian.

pub mod anatomy;
pub mod block_table;
pub mod checksum;
pub mod constants;
pub mod header;
pub mod log;
pub mod metadata;
pub mod region_table;
pub mod regions;
