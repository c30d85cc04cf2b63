//! The allocator alone: see `qcowfuzz::targets::refcounts`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qcowfuzz::targets;
use qcowfuzz::vm::program::Input;

fuzz_target!(|input: Input| targets::report(targets::refcounts(input.0)));
