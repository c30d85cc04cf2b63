//! Text that is safe to print on a terminal.

use std::io::Write;

/// Returns a character in a form that is safe on a terminal. Control characters, and those that change the
/// direction of writing, are escaped.
pub fn shown(character: char) -> String {
    let turns = matches!(
        character,
        '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}'
    );
    match character.is_control() || turns {
        true => character.escape_unicode().to_string(),
        false => character.to_string(),
    }
}

/// Prints `line` to standard error. If that is closed, the message is lost.
pub fn complain(line: &str) {
    // A file name may contain line breaks, but every message is one line.
    let line: String = line.replace(['\n', '\r'], " ").chars().map(shown).collect();
    let _ = writeln!(std::io::stderr().lock(), "qcowfuzz: {line}");
}
