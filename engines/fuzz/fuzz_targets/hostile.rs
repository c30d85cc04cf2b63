//! Damaged images, for the crate that a feature names.
#![no_main]

qcowfuzz::fuzz_target!(Hostile, qcowfuzz_engines_fuzz::UnderTest::default());
