//! Feedback: a fixed set of named counters that a fuzzer reads, as a pure function of the input.
//!
//! Edges are stateful: each state has a counter for each pair of events that can happen in it, the previous one and
//! this one. Each rare event has a counter. Each vital has a counter for each magnitude, and one for each magnitude of
//! its change from one image of a program to the next.

#[cfg(feature = "fuzzer")]
pub(crate) mod coverage;
pub(crate) mod layout;
pub mod recorder;
mod states;

#[cfg(feature = "fuzzer")]
pub(crate) use layout::Counter;
pub use recorder::Recorder;

/// Copies the counters of the run that is about to end to libFuzzer's extra counters, which it uses as coverage beside
/// the compiler's. libFuzzer clears them before each run and reads them after it (`FuzzerExtraCounters.cpp`). At its
/// start it prints their number: `INFO: … Extra Counters`. They exist only on Linux, and only in a fuzz target.
#[inline]
pub(crate) fn publish(recorder: &Recorder) {
    #[cfg(all(fuzzing, target_os = "linux"))]
    linux::publish(recorder);
    #[cfg(not(all(fuzzing, target_os = "linux")))]
    let _ = recorder;
}

#[cfg(all(fuzzing, target_os = "linux"))]
mod linux {
    use std::sync::atomic::{AtomicU8, Ordering};

    use crate::fuzzing::feedback::Recorder;
    use crate::fuzzing::feedback::layout::OWN_COUNTERS;

    /// libFuzzer clears whole words.
    #[repr(C, align(64))]
    struct Counters([AtomicU8; OWN_COUNTERS]);

    // SAFETY: the section holds only bytes, and libFuzzer's `ExtraCountersBegin` to `ExtraCountersEnd` is the whole
    // section. Any value of these bytes is valid on both sides, and our accesses are atomic.
    #[allow(unsafe_code)]
    // No code here reads it; without this attribute, the compiler would remove it.
    #[used]
    #[unsafe(link_section = "__libfuzzer_extra_counters")]
    static EXTRA: Counters = Counters([const { AtomicU8::new(0) }; OWN_COUNTERS]);

    /// Returns AddressSanitizer's default options, if the target has AddressSanitizer; the environment can override
    /// them. By default it keeps 256 MiB of freed memory, which is half of the memory of a fuzz target.
    // SAFETY: the runtime declares this function, weakly, with this signature
    // (`sanitizer/asan_interface.h`), calls it once at start, and only reads the string, which is static.
    #[allow(unsafe_code)]
    #[unsafe(no_mangle)]
    extern "C" fn __asan_default_options() -> *const std::ffi::c_char {
        c"quarantine_size_mb=32".as_ptr()
    }

    pub(super) fn publish(recorder: &Recorder) {
        for (first, piece) in recorder.pieces().filter(|(first, _)| *first < OWN_COUNTERS) {
            for (counter, count) in EXTRA.0[first..].iter().zip(piece) {
                counter.store(count.get(), Ordering::Relaxed);
            }
        }
    }
}
