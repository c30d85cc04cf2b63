//! What a run did, as a fuzzer's signal: a fixed set of counters, each with a name, that are a pure
//! function of the input. And the same for people: a log.
//!
//! Edges are stateful: in each state a counter for each pair of events, the one before and this one.
//! Rare events have a counter each. Vitals are one-hot: a counter for each magnitude of each, and one
//! for each magnitude by which it changed from one image of a program to the next.

pub mod attribution;
pub mod coverage;
pub mod extra;
pub mod layout;
pub mod log;
pub mod recorder;

pub use coverage::Coverage;
pub use layout::Counter;
pub use log::Log;
pub use recorder::Recorder;
