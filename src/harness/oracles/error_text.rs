//! The text of an engine's error, as a fingerprint contains it: without the values that differ from image to image.

/// The longest text in a fingerprint, in characters.
const MAX_CHARS: usize = 80;

/// Returns the first line of `text` with `_` in place of numbers, hexadecimal numbers, lists of them, paths and quoted
/// values. A digit
/// at the end of a word belongs to the word: L2, qcow2.
pub(super) fn without_values(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let words = without_quotes(line);
    let mut kept = String::new();
    for word in words.split_whitespace().map(without_value) {
        if kept.chars().count() + 1 + word.chars().count() > MAX_CHARS {
            break;
        }
        // A list of values is one value: its length differs from image to image.
        if kept.ends_with("_,") && word.starts_with('_') {
            kept.truncate(kept.len() - "_,".len());
        } else if !kept.is_empty() {
            kept.push(' ');
        }
        kept.push_str(&word);
    }
    kept
}

/// Replaces each quoted part of a line by `_`. A quote without an end, as in "isn't", quotes nothing.
fn without_quotes(line: &str) -> String {
    let mut rest = line;
    let mut kept = String::new();
    while let Some(at) = rest.find(['"', '\'', '`']) {
        let (before, from) = rest.split_at(at);
        // A quote is one byte long.
        let (quote, behind) = from.split_at(1);
        let begins = before.chars().next_back().is_none_or(|last| !last.is_alphanumeric());
        match behind.find(quote).filter(|_| begins) {
            Some(end) => {
                kept.push_str(before);
                kept.push('_');
                rest = &behind[end + 1..];
            }
            None => {
                kept.push_str(before);
                kept.push_str(quote);
                rest = behind;
            }
        }
    }
    kept + rest
}

/// Returns a word with `_` in place of its values.
fn without_value(word: &str) -> String {
    let bare = word.trim_matches(|one: char| !one.is_alphanumeric());
    let is_hex = bare.len() > 1 && bare.chars().all(|one| one.is_ascii_hexdigit());
    if is_hex && (bare.len() > 7 || bare.contains(|one: char| one.is_ascii_digit())) {
        return word.replace(bare, "_");
    }
    if word.contains('/') {
        return "_".to_string();
    }
    let mut kept = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(|one: char| one.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        let is_hex = from.starts_with("0x");
        let digits = from.trim_start_matches(|one: char| {
            one.is_ascii_digit() || one == '_' || is_hex && (one == 'x' || one.is_ascii_hexdigit())
        });
        let length = from.len() - digits.len();
        let in_word = before.chars().next_back().is_some_and(char::is_alphabetic);
        let ends_word = digits.chars().next().is_none_or(|next| !next.is_alphanumeric());
        kept.push_str(before);
        kept.push_str(if in_word && ends_word && length == 1 { &from[..1] } else { "_" });
        rest = digits;
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_left_out() {
        for (text, kept) in [
            ("guest offset 0x1f00 lies past the end", "guest offset _ lies past the end"),
            ("cluster 4096: L2 table of qcow2 v3", "cluster _: L2 table of qcow2 v3"),
            ("/tmp/x.1/layer.qcow2: No such file (os error 2)", "_ No such file (os error _)"),
            ("no format named 'raw2' or \"x y\" here", "no format named _ or _ here"),
            ("it isn't here, they don't say", "it isn't here, they don't say"),
            ("Error { offset: 65536, kind: Other }\nmore", "Error { offset: _, kind: Other }"),
            ("entry8000000000010000 and refs 1_000", "entry_ and refs _"),
            ("cluster 1f00, at (deadbeef)", "cluster _, at (_)"),
            ("a bad face", "a bad face"),
            ("unknown feature(s) 1, 2, 0x20 in a header", "unknown feature(s) _ in a header"),
            ("bits 3, 4, of 5", "bits _, of _"),
            ("", ""),
        ] {
            assert_eq!(without_values(text), kept);
        }
        let long = "nine chars".repeat(20);
        assert_eq!(
            without_values(&long),
            "nine charsnine charsnine charsnine charsnine charsnine charsnine charsnine"
        );
    }
}
