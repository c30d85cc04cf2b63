//! Checks that are left out, because this machine lacks something.

use std::fmt::Display;
use std::io::Write;

/// Prints a line about a check that is left out, past the test harness, which keeps the output of a test that passes.
pub fn skipped(what: impl Display) {
    let _ = std::io::stderr().write_all(format!("skipped: {what}\n").as_bytes());
}
