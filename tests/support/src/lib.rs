//! The common part of the tests: engines with planted faults, lines of programs, counts, and the tools of QEMU.

pub mod changed;
pub mod command;
pub mod corpus;
pub mod faulty;
pub mod lines;
pub mod planted;
pub mod prelude;
pub mod qemu;
pub mod skipped;
pub mod tally;
