//! Valid images, walked: the target `map_extents` of `qcowfuzz::harness::targets`.
#![no_main]

qcowfuzz::fuzz_target!(
    MapExtents,
    qcowfuzz::harness::cases::implementation::Implementation::our_walker()
);
