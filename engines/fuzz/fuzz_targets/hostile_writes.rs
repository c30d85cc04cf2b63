//! Programs with requests to damaged images, for the crate that a feature names, if it writes.
#![no_main]

qcowfuzz::fuzz_target!(HostileWrites, qcowfuzz_engines_fuzz::UnderTest::default());
