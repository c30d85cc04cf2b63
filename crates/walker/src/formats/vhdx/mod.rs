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

use crate::formats::error::MapError;

/// Returns the error of an image that breaks the format.
fn not_vhdx(what: &'static str) -> MapError {
    MapError::NotImage { format: "vhdx", what }
}
