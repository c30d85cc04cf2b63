//! The crash state: three lines by which ClusterFuzz distinguishes bugs.
//!
//! ClusterFuzz reads them from the output of a fuzz target. Its parser reads the message of an assertion and the stack
//! frames below it, up to three lines in all. It does not read panic messages of current Rust, and the innermost frames
//! of all violations are the same. So the target prints lines of its own in the form that the parser reads. They are
//! the last lines of the output, and the parser finds enough of them not to take a frame of the real stack.

use std::fmt;

use crate::findings::panics::PanicNote;

/// The crash state of a finding, which [`Display`](fmt::Display) prints in the form that ClusterFuzz parses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashState {
    fingerprint: String,
    /// The place of the finding: an oracle, or a function of the code under test.
    frame: String,
}

impl CrashState {
    /// Returns the crash state of a violation: the same for the same fingerprint.
    pub fn of_violation(fingerprint: &str) -> Self {
        let oracle = fingerprint.split(':').next().unwrap_or_default();
        Self { fingerprint: fingerprint.to_string(), frame: format!("oracle::{oracle}") }
    }

    /// Returns the crash state of a panic: the same for the same fingerprint and the same function of the code under
    /// test.
    pub fn of_panic(note: &PanicNote) -> Self {
        Self { fingerprint: note.fingerprint(), frame: format!("crate::{}", note.frame) }
    }

    /// Returns a hash of the crash state in letters, because the parser mistakes digits in a row for an address.
    fn hash(&self) -> String {
        let Self { fingerprint, frame } = self;
        let hash = crc32fast::hash(format!("{fingerprint}\n{frame}").as_bytes());
        let letter = |nibble: u32| char::from(b'a' + (hash >> (nibble * 4) & 15) as u8);
        (0..8).rev().map(letter).collect()
    }
}

impl fmt::Display for CrashState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "The crash state of this bug, for ClusterFuzz:")?;
        writeln!(f, "Assertion failed: {}", ascii(&self.fingerprint))?;
        // The parser ends the name of a function at the first space.
        writeln!(f, "    #0 0x0 in {}", ascii(&self.frame).replace(' ', "_"))?;
        // The parser cuts lines after 80 characters, and ClusterFuzz considers similar states to be one bug. If a state
        // has a "FuzzerHash=", it compares exactly.
        writeln!(f, "    #1 0x0 in FuzzerHash={}", self.hash())?;
        // The parser skips functions with some names (`assert_…`), and then takes this line.
        writeln!(f, "    #2 0x0 in end_of_crash_state")
    }
}

/// Returns the text in ASCII, because the parser drops other characters.
fn ascii(text: &str) -> String {
    let shown = |character: char| match character {
        '→' => "->".to_string(),
        ' '..='~' => character.to_string(),
        _ => character.escape_unicode().to_string(),
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_is_three_lines_and_a_spare_one() {
        let state =
            CrashState::of_violation("model: kind, zero-allocated → zero-plain").to_string();
        let lines: Vec<_> = state.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "Assertion failed: model: kind, zero-allocated -> zero-plain",
                "    #0 0x0 in oracle::model",
                "    #1 0x0 in FuzzerHash=gbaaekhf",
                "    #2 0x0 in end_of_crash_state",
            ]
        );
    }

    #[test]
    fn what_follows_the_arrow_or_the_end_of_a_line_counts() {
        let long = "data: ".repeat(20);
        for [one, other] in [
            ["data: normal, an answer → an error", "data: normal, an answer → a panic"],
            ["data: normal, → an error", "data: normal, an error →"],
            [&format!("{long}→ 1"), &format!("{long}→ 2")],
        ] {
            let [one, other] = [one, other].map(CrashState::of_violation);
            assert_ne!(one.hash(), other.hash());
            assert_ne!(one.to_string(), other.to_string());
        }
    }

    #[test]
    fn a_panic_is_named_by_its_function() {
        let note = |frame: &str| PanicNote {
            crate_name: "qcowfuzz".to_string(),
            file: "src/walkers/qcow2/read.rs".to_string(),
            function: "read_piece".to_string(),
            frame: frame.to_string(),
            detail: "what differs from run to run".to_string(),
        };
        let state = CrashState::of_panic(&note("walkers::qcow2::read::read_piece"));
        let printed = state.to_string();
        assert!(printed.contains("\nAssertion failed: panic: qcowfuzz, read_piece\n"), "{printed}");
        assert!(
            printed.contains("\n    #0 0x0 in crate::walkers::qcow2::read::read_piece\n"),
            "{printed}"
        );
        assert!(!printed.contains("differs"), "{printed}");
        assert_ne!(state.hash(), CrashState::of_panic(&note("walkers::qcow2::read::other")).hash());
    }

    #[test]
    fn odd_names_make_no_odd_lines() {
        let note = PanicNote { frame: "my code\n::ü".to_string(), ..PanicNote::default() };
        let printed = CrashState::of_panic(&note).to_string();
        assert!(printed.is_ascii() && printed.lines().count() == 5, "{printed}");
        assert!(printed.contains("in crate::my_code\\u{a}::\\u{fc}\n"), "{printed}");
    }
}
