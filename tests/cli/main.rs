//! The command, as a user runs it: its output, its exit codes, and its messages about bad input. If qemu-img is
//! installed, the tests compare its answers.

#![cfg(feature = "cli")]

mod bad_input;
mod chains;
mod check;
mod engine_command;
mod exhaustive;
mod fuzz;
mod implementation;
mod info;
mod lanes;
mod map;
mod merge;
mod minimize;
mod replay;
mod report;
mod report_in_browser;
mod verbs;

/// The folders in which commands run, and the command under test.
mod support {
    pub use test_support::command::*;

    pub const OURS: &str = env!("CARGO_BIN_EXE_qcowfuzz");
}
