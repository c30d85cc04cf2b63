//! The harness and the library, without the command: engines, oracles, programs and formats.

#![cfg(feature = "fuzzer")]

mod against_engines;
mod aims;
mod anatomy;
mod arbitrary;
mod determinism;
mod embedded;
mod far;
mod feedback;
mod folding;
mod headers;
mod known_findings;
mod large_disks;
mod other_formats;
mod partial_engines;
mod programs;
mod regressions;
mod selftest;
mod snapshot_rules;
