//! The allocator alone: the target `refcounts` of `qcowfuzz::harness::targets`.
#![no_main]

qcowfuzz::fuzz_target!(Refcounts, qcowfuzz::harness::Implementation::our_walker());
