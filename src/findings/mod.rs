//! The path from a violation to a fix: fingerprints of panics, crash states, runs in separate processes, the minimizer
//! and its judges, explanations and the evidence of a finding, its report as text, page and archive, triage and
//! regressions.

#[cfg(feature = "cli")]
pub mod bundle;
pub(crate) mod crash_state;
#[cfg(feature = "fuzzer")]
pub mod evidence;
#[cfg(feature = "fuzzer")]
pub mod examiner;
pub(crate) mod explain;
pub mod file_text;
#[cfg(feature = "fuzzer")]
pub mod isolation;
#[cfg(feature = "fuzzer")]
pub mod judges;
pub(crate) mod log;
pub mod minimizer;
#[cfg(feature = "cli")]
pub mod page;
pub(crate) mod panics;
mod provenance;
#[cfg(feature = "cli")]
pub(crate) mod qemu;
#[cfg(feature = "fuzzer")]
pub(crate) mod records;
pub mod regression;
#[cfg(feature = "fuzzer")]
pub mod report;
pub mod runner;
mod rust_test;
#[cfg(feature = "fuzzer")]
pub mod triage;
pub(crate) mod watch;

pub use panics::{PanicNote, PanicNotes};
