//! The macro that defines a libFuzzer target for an implementation.

/// Defines a `cargo fuzz` target for an implementation, in a file that begins with `#![no_main]`:
///
/// ```ignore
/// #![no_main]
/// qcowfuzz::fuzz_target!(MapExtents, MyEngine::default());
/// ```
///
/// The first operand is a [`TargetKind`](crate::harness::targets::TargetKind): `MapExtents` for valid images, `Hostile`
/// for damaged ones, `RawImage` for files of any content. The crate needs `libfuzzer-sys` among its dependencies.
#[macro_export]
macro_rules! fuzz_target {
    (RawImage, $implementation:expr) => {
        ::libfuzzer_sys::fuzz_target!(
            init: $crate::fuzzing::libfuzzer::name_panics(),
            |input: &[u8]| {
                let kind = $crate::harness::targets::TargetKind::RawImage;
                let ran = $crate::fuzzing::libfuzzer::run_with(|| $implementation, kind, input);
                $crate::fuzzing::libfuzzer::report(ran)
            }
        );

        ::libfuzzer_sys::fuzz_mutator!(
            |data: &mut [u8], size: usize, max_size: usize, seed: u32| {
                let bytes = ::libfuzzer_sys::fuzzer_mutate;
                $crate::fuzzing::libfuzzer::mutate_file(
                    || $implementation,
                    (data, size),
                    max_size,
                    seed,
                    bytes,
                )
            }
        );
    };
    ($kind:ident, $implementation:expr) => {
        ::libfuzzer_sys::fuzz_target!(
            init: $crate::fuzzing::libfuzzer::name_panics(),
            |input: $crate::programs::Input| {
                let kind = $crate::harness::targets::TargetKind::$kind;
                let ran = $crate::fuzzing::libfuzzer::run_with(|| $implementation, kind, input.0);
                $crate::fuzzing::libfuzzer::report(ran)
            }
        );

        ::libfuzzer_sys::fuzz_mutator!(
            |data: &mut [u8], size: usize, max_size: usize, seed: u32| {
                let kind = $crate::harness::targets::TargetKind::$kind;
                let bytes = ::libfuzzer_sys::fuzzer_mutate;
                $crate::fuzzing::libfuzzer::mutate_for(
                    || $implementation,
                    kind,
                    (data, size),
                    max_size,
                    seed,
                    bytes,
                )
            }
        );

        ::libfuzzer_sys::fuzz_crossover!(
            |data1: &[u8], data2: &[u8], out: &mut [u8], seed: u32| {
                $crate::fuzzing::libfuzzer::crossover(data1, data2, out, seed)
            }
        );
    };
}
