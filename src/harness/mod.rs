//! One run and its verdict: the engine interface, the reference model, the oracles and the targets.

pub mod against;
pub mod cases;
pub mod description;
pub mod engine;
pub mod engines;
pub mod files;
pub(crate) mod model;
pub(crate) mod oracles;
pub mod prelude;
pub mod selftest;
pub mod targets;
pub(crate) mod writing;

pub use cases::implementation::Implementation;
pub use cases::pipeline::{Checks, Failure, Outcome, Pipeline};
pub use cases::run::Harness;
pub use engine::known::{KnownFinding, KnownFindings, MetFinding};
#[cfg(feature = "fuzzer")]
pub use engines::chain_files::{ChainFiles, LentFiles};
pub use engines::walker::Walker;
pub use oracles::Violation;
pub use peak_alloc::PeakAlloc;
