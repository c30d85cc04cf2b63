//! Programs with requests, for the crate that a feature names, if it writes.
#![no_main]

qcowfuzz::fuzz_target!(Writes, qcowfuzz_engines_fuzz::UnderTest::default());
