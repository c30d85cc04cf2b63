//! Any bytes as a file: the target `raw_image` of `qcowfuzz::harness::targets`.
#![no_main]

qcowfuzz::fuzz_target!(RawImage, qcowfuzz::harness::Implementation::our_walker());
