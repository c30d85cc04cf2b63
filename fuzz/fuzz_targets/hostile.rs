//! Damaged images: the target `hostile` of `qcowfuzz::harness::targets`.
#![no_main]

use libfuzzer_sys::{fuzz_crossover, fuzz_mutator, fuzz_target, fuzzer_mutate};
use qcowfuzz::fuzzing::libfuzzer;
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::programs::Input;

const TARGET: TargetKind = TargetKind::Hostile;

fuzz_target!(init: libfuzzer::name_panics(), |input: Input| libfuzzer::report(libfuzzer::run(TARGET, input.0)));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    libfuzzer::mutate(data, size, max_size, seed, TARGET.limits(), fuzzer_mutate)
});

fuzz_crossover!(|data1: &[u8], data2: &[u8], out: &mut [u8], seed: u32| {
    libfuzzer::crossover(data1, data2, out, seed)
});
