//! Drives the harness: mutators, feedback, the corpus, the embedded loop and campaigns.

#[cfg(feature = "fuzzer")]
pub mod campaign;
#[cfg(feature = "fuzzer")]
pub mod corpus;
#[cfg(feature = "fuzzer")]
pub mod embedded;
pub mod feedback;
mod fuzz_target;
mod known_file;
pub mod libfuzzer;
pub(crate) mod mutators;
