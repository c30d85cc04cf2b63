//! Types that every format shares: offsets, extents, storage, errors, limits and events.

pub mod clusters;
pub mod crc32c_zeros;
pub mod error;
pub(crate) mod events;
pub mod extent;
pub mod image_format;
pub mod limits;
pub mod observer;
pub mod offsets;
pub mod storage;
