//! Damaged images: see `qcowfuzz::targets::hostile`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qcowfuzz::targets;
use qcowfuzz::vm::program::Input;

fuzz_target!(|input: Input| targets::report(targets::hostile(input.0)));
