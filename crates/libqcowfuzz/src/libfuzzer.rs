//! libFuzzer: the functions of a target in C or C++, and the mutator and the crossover, which libFuzzer finds by name.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

use crate::engine::EngineTable;
use crate::handle::{
    Handle, QCOWFUZZ_ERROR, QCOWFUZZ_FINDING, qcowfuzz_new, qcowfuzz_print, qcowfuzz_run,
};
use crate::programs::{qcowfuzz_cross_over, qcowfuzz_mutate};

thread_local! {
    /// The harness of the target of this process, for libFuzzer's functions, which have no argument for it.
    static OF_TARGET: Cell<*mut Handle> = const { Cell::new(ptr::null_mut()) };
}

/// Runs an input of libFuzzer or AFL++ in the target `target` with the code under test `engine`: the same ones in all
/// calls of a thread. A finding is printed, and ends the process by `abort`, as both expect. Returns 0. Programs call
/// it in `LLVMFuzzerTestOneInput`: see QCOWFUZZ_FUZZ_TARGET.
///
/// # Safety
/// As for `qcowfuzz_new` and `qcowfuzz_run`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn qcowfuzz_test_one_input(
    target: *const c_char,
    engine: *const EngineTable,
    data: *const u8,
    size: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let handle = unsafe { handle_of(target, engine) };
    // SAFETY: the handle is null or valid; the rest is the caller's promise.
    match unsafe { qcowfuzz_run(handle, data, size) } {
        QCOWFUZZ_FINDING => {
            // SAFETY: the handle has run.
            unsafe { qcowfuzz_print(handle) };
            std::process::abort()
        }
        QCOWFUZZ_ERROR => end_with_last_error(),
        _ => 0,
    }
}

/// Returns the harness of the target of this process, which the first call creates.
///
/// # Safety
/// As for `qcowfuzz_new`.
unsafe fn handle_of(target: *const c_char, engine: *const EngineTable) -> *mut Handle {
    if OF_TARGET.get().is_null() {
        // SAFETY: the caller's promise.
        OF_TARGET.set(unsafe { qcowfuzz_new(target, engine) });
    }
    OF_TARGET.get()
}

/// Ends the process with the last error, which no input is to blame for.
fn end_with_last_error() -> ! {
    eprintln!("qcowfuzz: {}", crate::errors::last());
    std::process::exit(2)
}

/// libFuzzer's mutator: mutates a program of the target that has run.
///
/// # Safety
/// `data` has `size` bytes, and room for `max_size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn LLVMFuzzerCustomMutator(
    data: *mut u8,
    size: usize,
    max_size: usize,
    seed: c_uint,
) -> usize {
    // SAFETY: the handle is that of this thread; the rest is the caller's promise.
    unsafe { qcowfuzz_mutate(OF_TARGET.get(), data, size, max_size, u64::from(seed)) }
}

/// libFuzzer's crossover: makes a program with parts of two.
///
/// # Safety
/// The inputs have as many bytes as their sizes say, and `into` has room for `max_size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn LLVMFuzzerCustomCrossOver(
    data: *const u8,
    size: usize,
    other: *const u8,
    other_size: usize,
    into: *mut u8,
    max_size: usize,
    seed: c_uint,
) -> usize {
    let (handle, seed) = (OF_TARGET.get(), u64::from(seed));
    // SAFETY: the handle is that of this thread; the rest is the caller's promise.
    unsafe { qcowfuzz_cross_over(handle, data, size, other, other_size, into, max_size, seed) }
}
