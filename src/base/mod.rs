//! The types that several rooms share and that belong to no format: the errors of the harness, features, files of the
//! system, limits, and ranges.

pub mod error;
pub mod features;
pub mod file_parts;
#[cfg(feature = "fuzzer")]
pub(crate) mod files;
pub(crate) mod limits;
pub(crate) mod ranges;
pub(crate) mod reasons;
