//! What drives the harness: mutators, feedback, the corpus and the embedded loop.

#[cfg(feature = "fuzzer")]
pub mod corpus;
#[cfg(feature = "fuzzer")]
pub mod embedded;
pub mod feedback;
pub mod libfuzzer;
pub mod mutators;
