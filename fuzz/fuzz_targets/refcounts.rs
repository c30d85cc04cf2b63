//! The allocator alone: see `qcowfuzz::fuzzing::libfuzzer::refcounts`.
#![no_main]

use libfuzzer_sys::{fuzz_crossover, fuzz_mutator, fuzz_target, fuzzer_mutate};
use qcowfuzz::fuzzing::{libfuzzer, mutators};
use qcowfuzz::images::limits::Limits;
use qcowfuzz::programs::program::Input;

fuzz_target!(init: libfuzzer::name_panics(), |input: Input| libfuzzer::report(libfuzzer::refcounts(input.0)));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutators::mutate(data, size, max_size, seed, Limits::ALLOCATED, fuzzer_mutate)
});

fuzz_crossover!(|data1: &[u8], data2: &[u8], out: &mut [u8], seed: u32| {
    mutators::crossover(data1, data2, out, seed)
});
