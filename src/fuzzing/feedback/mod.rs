//! Feedback: a fixed set of named counters that a fuzzer reads, as a pure function of the input.
//!
//! Edges are stateful: each state has a counter for each pair of events that can happen in it, the previous one and
//! this one. Each rare event has a counter. Each vital has a counter for each magnitude, and one for each magnitude of
//! its change from one image of a program to the next.

#[cfg(feature = "cli")]
pub(crate) mod attribution;
#[cfg(feature = "fuzzer")]
pub(crate) mod coverage;
pub(crate) mod extra;
pub(crate) mod layout;
pub mod recorder;
mod states;

#[cfg(feature = "fuzzer")]
pub(crate) use layout::Counter;
pub use recorder::Recorder;
