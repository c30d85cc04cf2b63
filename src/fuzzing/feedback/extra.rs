//! libFuzzer's extra counters: what it takes for coverage beside the compiler's.
//!
//! It clears them before each run and reads them after it (`FuzzerExtraCounters.cpp`), and tells at its
//! start how many there are: `INFO: … Extra Counters`. Only on Linux, and only in a fuzz target; anywhere
//! else [`publish`] does nothing.

use super::Recorder;

/// Gives libFuzzer the counters of the run that is about to end.
#[inline]
pub fn publish(recorder: &Recorder) {
    #[cfg(all(fuzzing, target_os = "linux"))]
    linux::publish(recorder);
    #[cfg(not(all(fuzzing, target_os = "linux")))]
    let _ = recorder;
}

#[cfg(all(fuzzing, target_os = "linux"))]
mod linux {
    use std::sync::atomic::{AtomicU8, Ordering};

    use crate::fuzzing::feedback::Recorder;
    use crate::fuzzing::feedback::layout::COUNTERS;

    /// libFuzzer clears whole words.
    #[repr(C, align(64))]
    struct Counters([AtomicU8; COUNTERS]);

    // SAFETY: the section holds nothing but bytes, of which libFuzzer's `ExtraCountersBegin` to
    // `ExtraCountersEnd` is all; any value of them is valid on both sides, and each access of ours is
    // atomic.
    #[allow(unsafe_code)]
    // Nothing here reads it: without this the compiler leaves it out.
    #[used]
    #[unsafe(link_section = "__libfuzzer_extra_counters")]
    static EXTRA: Counters = Counters([const { AtomicU8::new(0) }; COUNTERS]);

    /// What AddressSanitizer, where there is one, takes for its options; the environment has the last word.
    /// It would keep 256 MiB of freed memory aside, which is half of all that a fuzz target takes.
    // SAFETY: the runtime declares this function, weakly, with this signature
    // (`sanitizer/asan_interface.h`), calls it once at start, and only reads the string, which is static.
    #[allow(unsafe_code)]
    #[unsafe(no_mangle)]
    extern "C" fn __asan_default_options() -> *const std::ffi::c_char {
        c"quarantine_size_mb=32".as_ptr()
    }

    pub(super) fn publish(recorder: &Recorder) {
        for (first, piece) in recorder.pieces() {
            for (counter, count) in EXTRA.0[first..].iter().zip(piece) {
                counter.store(count.get(), Ordering::Relaxed);
            }
        }
    }
}
