//! The macro that makes a program the whole command for an implementation.

/// Defines the `main` of a program that is the whole command, with your implementation under test:
///
/// ```ignore
/// qcowfuzz::command!(MyEngine::default());
/// ```
///
/// It calls [`cli::main_with`](crate::cli::main_with), and makes [`PeakAlloc`](crate::harness::PeakAlloc) the global
/// allocator, which the oracle `memory` needs. A program with another allocator calls `main_with` itself.
#[macro_export]
macro_rules! command {
    ($implementation:expr) => {
        /// Counts the allocated bytes, for the oracle `memory`.
        #[global_allocator]
        static ALLOCATOR: $crate::harness::PeakAlloc = $crate::harness::PeakAlloc;

        fn main() -> ::std::process::ExitCode {
            $crate::cli::main_with($implementation)
        }
    };
}
