//! Any bytes as a file: see `qcowfuzz::fuzzing::libfuzzer::raw_image`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qcowfuzz::fuzzing::libfuzzer;

fuzz_target!(init: libfuzzer::name_panics(), |input: &[u8]| libfuzzer::report(libfuzzer::raw_image(input)));
