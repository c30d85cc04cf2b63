//! `fuzz --exhaustive`: all programs are judged, and each kind of fault that a search tries is found.

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::support::{Folder, Ran, built_example};

/// The command of the small writer.
static COMMAND: LazyLock<PathBuf> = LazyLock::new(|| built_example("small_writer"));

/// Runs a search with a fault of the small writer; the empty name is none.
fn search(fault: &str, words: &str) -> Ran {
    let dir = Folder::new();
    let words = format!("fuzz --target writes --exhaustive {words}");
    let mut command = dir.command(&*COMMAND, &words);
    if !fault.is_empty() {
        command.env("QCOWFUZZ_WRITER_FAULT", fault);
    }
    Ran::of(&mut command)
}

#[test]
fn all_programs_of_one_request_are_judged() {
    let ran = search("", "1");
    ran.ok().has("30 of 30 programs").has("all judged").has("found: nothing");
}

#[test]
fn each_kind_of_fault_is_found() {
    for (fault, requests, found) in [
        // Two requests in flight.
        ("cluster_not_locked", 2, "refcounts: "),
        // One file operation that fails.
        ("write_error_ignored", 1, "file_error: "),
        // A power cut behind the request, and one while the image is closed.
        ("entry_before_data", 1, "power_cut: "),
        ("close_torn", 1, "power_cut: "),
    ] {
        search(fault, &format!("{requests} --until-found")).exits(1).has(found);
    }
}

#[test]
fn a_search_needs_a_target_that_writes() {
    let dir = Folder::new();
    let ran = Ran::of(&mut dir.command(&*COMMAND, "fuzz --exhaustive 1"));
    ran.fails(2, "--exhaustive: found the target map_extents, expected writes");
}
