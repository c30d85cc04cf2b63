//! Types that every format and every implementation shares: offsets, extents, storage, files, errors, limits and
//! events.

pub(crate) mod chain_features;
pub(crate) mod clusters;
pub mod error;
pub mod extent;
#[cfg(feature = "fuzzer")]
pub(crate) mod files;
pub(crate) mod image_format;
pub(crate) mod limits;
pub(crate) mod observer;
pub mod offsets;
pub mod storage;
