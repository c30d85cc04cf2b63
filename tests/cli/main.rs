//! The command, as a user runs it: its output, its exit codes, and its messages about bad input. If qemu-img is
//! installed, the tests compare its answers.

#![cfg(feature = "cli")]

mod against;
mod bad_input;
mod bundle;
mod campaigns;
mod chains;
mod check;
mod convert;
mod corpus;
mod differential;
mod engine_command;
mod engine_qemu_img;
mod fuzz;
mod implementation;
mod info;
mod map;
mod measure;
mod merge;
mod minimize;
mod new_engine;
mod processes;
mod programs;
mod regress;
mod replay;
mod report;
mod report_in_browser;
mod shared;
#[path = "../skipped/mod.rs"]
mod skipped;
mod support;
mod triage;
mod verbs;
