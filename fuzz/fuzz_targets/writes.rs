//! Writing to images: the target `writes` of `qcowfuzz::harness::targets`, with our small writer.
#![no_main]

qcowfuzz::fuzz_target!(Writes, qcowfuzz::harness::implementation::Implementation::our_walker());
