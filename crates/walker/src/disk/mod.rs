//! Types that every format shares: offsets, extents, storage, errors, limits and events.

mod closed;
pub mod clusters;
pub mod crc32c_zeros;
pub mod error;
pub mod extent;
pub mod image_format;
pub mod limits;
pub mod observer;
pub mod offsets;
mod second_answer;
pub mod storage;
mod vital;
