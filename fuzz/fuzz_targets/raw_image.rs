//! Any bytes as a file: the target `raw_image` of `qcowfuzz::harness::targets`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qcowfuzz::fuzzing::libfuzzer;
use qcowfuzz::harness::targets::TargetKind;

const TARGET: TargetKind = TargetKind::RawImage;

fuzz_target!(init: libfuzzer::name_panics(), |input: &[u8]| libfuzzer::report(libfuzzer::run(TARGET, input)));
