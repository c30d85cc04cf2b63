//! The C library: the harness behind functions that C can call. `include/qcowfuzz.h` is made from this crate by
//! cbindgen, so the comments here are the documentation of the header.
//!
//! The harness runs on a stack of its own ([`stage`]). Its engine asks a question by leaving that stack, and the caller
//! of the library, or a callback, answers on the caller's stack. So no frame of Rust lies between a callback and the
//! code that called `qcowfuzz_run`, except one that owns nothing.

mod afl;
mod answer;
mod case_files;
mod engine;
mod errors;
mod export;
mod file_functions;
mod handle;
mod libfuzzer;
mod programs;
mod question;
mod serve;
mod stage;

use std::ffi::{c_char, c_int};

/// The version of the binary interface. It changes if a function or a field changes its meaning; functions, and fields
/// at the end of structures, may be added without a change.
pub const QCOWFUZZ_ABI: c_int = 1;

/// Returns the version of the binary interface of the library that runs: `QCOWFUZZ_ABI` of its header.
#[unsafe(no_mangle)]
pub extern "C" fn qcowfuzz_abi() -> c_int {
    QCOWFUZZ_ABI
}

/// Returns the version of the library, such as "0.1.0". The text lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn qcowfuzz_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
