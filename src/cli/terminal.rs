//! Text for a terminal.

use std::io::Write;

/// A character as it may reach a terminal: what moves its cursor, or turns the direction of writing, is
/// told by its number.
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

/// Says `line` on standard error. Where that is closed too, there is nobody to tell.
pub fn complain(line: &str) {
    // File names may hold anything; the promise is one line.
    let line: String = line.replace(['\n', '\r'], " ").chars().map(shown).collect();
    let _ = writeln!(std::io::stderr().lock(), "qcowfuzz: {line}");
}
