//! A file that the end of the engine's process could have left has all that the guest has flushed, and needs no repair
//! except for leaks. `harness::writing` judges it as it does after a power cut.
//!
//! Does not check: bytes that a request has changed since the flush; if the image has the dirty bit, its counts, its
//! raw data file and the engine's answers; a write that the end of the process tears.

use super::{Violation, written};

/// Returns a violation that was found in a file after the end of the engine's process.
pub fn attributed(found: Box<Violation>) -> Box<Violation> {
    written::in_file(found).attributed_to("killed")
}
