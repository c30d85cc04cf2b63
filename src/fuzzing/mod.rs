//! Drives the harness: mutators, feedback, the corpus, the embedded loop and campaigns.

#[cfg(feature = "fuzzer")]
pub mod campaign;
#[cfg(feature = "fuzzer")]
pub mod corpus;
#[cfg(feature = "fuzzer")]
pub mod embedded;
pub mod feedback;
pub mod libfuzzer;
pub(crate) mod mutators;
