//! What every format and every implementation shares: offsets, extents, storage, errors, and the events that all report.

pub mod error;
pub mod extent;
pub mod limits;
pub mod observer;
pub mod offsets;
pub mod storage;
