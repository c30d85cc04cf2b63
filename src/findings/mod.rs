//! From a violation to a fix: fingerprints of panics, crash states, the minimizer, explanations and regressions.

pub mod crash_state;
pub mod explain;
pub mod minimizer;
pub mod panics;
mod provenance;
pub mod regression;
pub mod runner;
pub mod watch;
