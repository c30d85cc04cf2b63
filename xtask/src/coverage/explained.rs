//! Files of explanations: why no run reaches some lines, or finds some mutants. A heading `KIND: TEXT` stands above the
//! names that it explains, each behind four blanks. A line that begins with `#` is a comment.

use anyhow::{Result, bail};

/// An explanation with the names that it explains.
#[derive(Debug)]
pub struct Explanation {
    /// One of the kinds of the file.
    pub kind: &'static str,
    /// The names of files, functions and lines, or of mutants.
    pub names: Vec<String>,
}

/// Parses a file of explanations of these kinds.
pub fn parse(text: &str, kinds: &[&'static str]) -> Result<Vec<Explanation>> {
    let mut found = Vec::<Explanation>::new();
    for (index, line) in text.lines().enumerate() {
        let heading = line.split_once(": ").and_then(|(kind, _)| {
            let kind = *kinds.iter().find(|it| **it == kind)?;
            Some(Explanation { kind, names: Vec::new() })
        });
        match (heading, line.strip_prefix("    "), found.last_mut()) {
            (Some(heading), ..) => found.push(heading),
            (None, Some(name), Some(last)) => last.names.push(name.trim().to_owned()),
            _ if line.is_empty() || line.starts_with('#') => {}
            _ => bail!(
                "line {}: expected a heading ({}) or a name after four blanks, found '{line}'",
                index + 1,
                kinds.join(", ")
            ),
        }
    }
    Ok(found)
}
