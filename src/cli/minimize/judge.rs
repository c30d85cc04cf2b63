//! The interface of the judges, which report whether a candidate shows the bug.

use crate::cli::exit::Failure;

/// Reports whether a candidate shows the bug.
pub trait Judge {
    /// Whether a candidate does. After a failure, none does.
    fn keeps(&mut self, candidate: &[u8]) -> bool;

    /// What was found in the input.
    fn shown(&self) -> String;

    /// How many other checksums are tried for each candidate.
    fn rerolls(&self) -> u16 {
        0
    }

    /// Whether what a candidate builds may be built in this process.
    fn runs_here(&self) -> bool {
        true
    }

    /// Why a candidate could not be judged.
    fn failure(&mut self) -> Option<Failure> {
        None
    }
}
