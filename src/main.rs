//! The command `qcowfuzz`.

/// Counts what the walker allocates, for the oracle `memory`.
#[global_allocator]
static ALLOCATOR: qcowfuzz::harness::PeakAlloc = qcowfuzz::harness::PeakAlloc;

fn main() -> std::process::ExitCode {
    qcowfuzz::cli::main()
}
