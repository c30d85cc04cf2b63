//! A file that a power cut could have left has all that the guest has flushed, and needs no repair except for leaks.
//! `harness::writing` judges it with our walker, the recount and the engine.
//!
//! Does not check: bytes that a request has changed since the flush; if the image has the dirty bit, its counts, its
//! raw data file and the engine's answers.

use super::{Violation, written};

/// Returns a violation that was found in a file after a power cut.
pub fn attributed(found: Box<Violation>) -> Box<Violation> {
    written::in_file(found).attributed_to("power_cut")
}
