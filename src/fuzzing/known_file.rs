//! The file of known findings that a libFuzzer target adds to those of its implementation.

use std::ffi::OsStr;

use crate::harness::KnownFindings;
use crate::harness::cases::implementation::Implementation;

/// The environment variable that names a file of known findings, which are set aside beside those of the
/// implementation: libFuzzer's command line has no room for the option `--known`.
const KNOWN_FILE: &str = "QCOWFUZZ_KNOWN";

/// Returns the known findings of an implementation and those of the file that [`KNOWN_FILE`] names. If the file is
/// wrong, ends the process with one line and the exit code of the commands.
pub(super) fn known_findings(implementation: &Implementation) -> KnownFindings {
    let known = implementation.facts().known;
    let Some(path) = std::env::var_os(KNOWN_FILE) else { return known };
    match known_file(&path) {
        Ok(added) => known.and(&added),
        Err(what) => {
            eprintln!("{KNOWN_FILE}: {}: {what}", path.display());
            std::process::exit(2);
        }
    }
}

/// Reads a file of known findings. An error names what is wrong, and what was expected.
fn known_file(path: &OsStr) -> Result<KnownFindings, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{error}, expected a file of known findings"))?;
    KnownFindings::parse(&text).map_err(|error| error.to_string())
}
