//! The whole command of qcowfuzz, with this crate under test.

use std::process::ExitCode;

use qcowfuzz::harness::PeakAlloc;
use qcowfuzz_engines::rust_img_qcow2::RustImgQcow2;

/// Counts what the crate allocates, for the oracle `memory`.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

fn main() -> ExitCode {
    qcowfuzz::cli::main_with(RustImgQcow2::default())
}
