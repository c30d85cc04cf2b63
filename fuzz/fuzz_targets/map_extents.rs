//! Valid images, walked: see `qcowfuzz::targets::map_extents`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qcowfuzz::targets;
use qcowfuzz::vm::program::Input;

fuzz_target!(|input: Input| targets::report(targets::map_extents(input.0)));
