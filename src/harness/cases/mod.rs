//! A run: an input becomes cases, the engine under test answers questions about each, and the verdicts are kept.

pub(crate) mod accesses;
pub(crate) mod case;
pub(crate) mod explored;
pub mod implementation;
pub mod lanes;
pub(crate) mod pipeline;
#[cfg(feature = "cli")]
mod recipe_source;
pub(crate) mod run;
pub mod target;
pub mod tracer;
