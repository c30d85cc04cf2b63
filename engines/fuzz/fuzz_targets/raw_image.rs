//! Files of any content, for the crate that a feature names.
#![no_main]

qcowfuzz::fuzz_target!(RawImage, qcowfuzz_engines_fuzz::UnderTest::default());
