//! Valid images, walked: the target `map_extents` of `qcowfuzz::harness::targets`.
#![no_main]

qcowfuzz::fuzz_target!(MapExtents, qcowfuzz::harness::Implementation::our_walker());
