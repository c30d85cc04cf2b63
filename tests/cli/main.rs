//! The command, as a person runs it: what it prints, how it exits, and what it makes of bad input.
//! Where qemu-img is at hand it is asked the same.

#![cfg(feature = "cli")]

mod bad_input;
mod bundle;
mod campaigns;
mod chains;
mod check;
mod fuzz;
mod map;
mod merge;
mod minimize;
mod programs;
mod regress;
mod replay;
mod report;
mod report_in_browser;
mod shared;
#[path = "../skipped/mod.rs"]
mod skipped;
mod state;
mod support;
mod triage;
