//! Any bytes as a file: see `qcowfuzz::targets::raw_image`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qcowfuzz::targets;

fuzz_target!(init: targets::name_panics(), |input: &[u8]| targets::report(targets::raw_image(input)));
