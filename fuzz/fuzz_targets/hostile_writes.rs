//! Writing to damaged images: the target `hostile_writes` of `qcowfuzz::harness::targets`, with our small writer.
#![no_main]

qcowfuzz::fuzz_target!(HostileWrites, small_writer::implementation(None));
