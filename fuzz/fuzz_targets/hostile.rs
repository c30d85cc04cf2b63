//! Damaged images: the target `hostile` of `qcowfuzz::harness::targets`.
#![no_main]

qcowfuzz::fuzz_target!(Hostile, qcowfuzz::harness::Implementation::our_walker());
