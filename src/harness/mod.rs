//! One run and its verdict: the engine interface, the reference model, the oracles and the targets.

pub(crate) mod case;
pub mod chain;
pub mod claims;
pub mod engine;
#[cfg(feature = "fuzzer")]
pub(crate) mod export;
pub mod idle;
pub mod implementation;
mod judge;
pub(crate) mod meter;
pub(crate) mod model;
pub(crate) mod oracles;
mod pipeline;
mod rounded;
mod run;
pub mod status;
pub mod target;
pub mod targets;
mod verdicts;
mod walker;

pub use oracles::Violation;
pub use pipeline::{Checks, Failure, Outcome, Pipeline};
pub use run::Harness;
pub use verdicts::KnownFindings;
pub use walker::{Walker, WalkerDisk};
