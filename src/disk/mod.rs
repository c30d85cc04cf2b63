//! Types that every format and every implementation shares: offsets, extents, storage, files, errors, limits and
//! events.

pub(crate) mod bounded_reads;
mod closed;
pub(crate) mod clusters;
pub(crate) mod crc32c_zeros;
pub mod error;
pub mod extent;
pub mod features;
pub mod file_parts;
#[cfg(feature = "fuzzer")]
pub(crate) mod files;
pub mod image_format;
pub(crate) mod known_bytes;
pub(crate) mod limits;
pub(crate) mod observer;
pub mod offsets;
pub(crate) mod ranges;
mod second_answer;
pub mod storage;
mod vital;
