//! The path from a violation to a fix: fingerprints of panics, crash states, runs in separate processes, the minimizer
//! and its judges, explanations, reports with their evidence, triage and regressions.

pub(crate) mod crash_state;
pub(crate) mod explain;
pub mod file_text;
#[cfg(feature = "fuzzer")]
pub mod isolation;
pub mod minimizer;
pub(crate) mod panics;
pub mod regression;
#[cfg(feature = "fuzzer")]
pub mod report;
pub mod runner;
#[cfg(feature = "fuzzer")]
pub mod triage;

pub use panics::{PanicNote, PanicNotes};
