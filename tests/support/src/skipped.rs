//! Reports checks that are skipped because this machine lacks a tool.

use std::fmt::Display;
use std::io::Write;

/// Prints a line about a skipped check. Bypasses the test harness, which hides the output of a test that passes.
pub fn skipped(what: impl Display) {
    let _ = std::io::stderr().write_all(format!("skipped: {what}\n").as_bytes());
}
