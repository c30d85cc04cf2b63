//! Types that every format and every implementation shares: offsets, extents, storage, errors, limits and events.

pub mod error;
pub mod extent;
pub mod limits;
pub mod observer;
pub mod offsets;
pub mod storage;
