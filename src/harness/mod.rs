//! One run and its verdict: the engine interface, the reference model, the oracles and the targets.

mod accesses;
pub(crate) mod case;
pub mod chain;
mod chain_error;
#[cfg(feature = "fuzzer")]
pub(crate) mod chain_files;
pub mod claims;
#[cfg(feature = "fuzzer")]
pub mod command_engine;
pub mod engine;
pub(crate) mod engine_failure;
#[cfg(feature = "fuzzer")]
mod engine_process;
pub(crate) mod file_input;
#[cfg(feature = "fuzzer")]
pub mod image_program;
pub mod implementation;
pub mod info;
pub(crate) mod known;
pub(crate) mod meter;
pub(crate) mod model;
pub(crate) mod oracles;
mod origins;
mod pipeline;
pub mod prelude;
#[cfg(feature = "fuzzer")]
pub mod qemu_io;
pub mod questions;
#[cfg(feature = "cli")]
mod recipe_source;
mod run;
#[cfg(feature = "fuzzer")]
mod second_engine;
pub mod second_opinion;
pub mod selftest;
pub mod status;
pub mod stream;
pub mod target;
pub mod targets;
pub(crate) mod tested;
mod top_files;
pub mod tracer;
mod verdicts;
mod walker;
mod write_log;
pub(crate) mod writing;
mod written_file;

#[cfg(feature = "fuzzer")]
pub use chain_files::ChainFiles;
pub use known::{KnownFinding, KnownFindings, MetFinding};
pub use oracles::Violation;
pub use peak_alloc::PeakAlloc;
pub use pipeline::{Checks, Failure, Outcome, Pipeline};
pub use run::Harness;
pub use walker::Walker;
