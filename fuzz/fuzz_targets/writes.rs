//! Writing to images: the target `writes` of `qcowfuzz::harness::targets`, with our small writer.
#![no_main]

qcowfuzz::fuzz_target!(Writes, small_writer::implementation(None));
