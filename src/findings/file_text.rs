//! A file as text: its length, and the rows of 16 bytes that have one that is not 0. `regress` and `minimize` print
//! inputs that are files in this form.
//!
//! ```text
//! file bytes=196608
//! 0x0 51 46 49 fb 00 00 00 03
//! 0x20 00 00 00 00 00 00 00 01 00 00 00 00 00 03
//! ```

use std::fmt;

use crate::base::error::Error;
use crate::base::limits::MAX_INPUT_BYTES;

/// The number of bytes in a row.
const TEXT_ROW_BYTES: usize = 16;
/// The first word of the text.
const FILE: &str = "file";

/// Displays the bytes of a file as text.
#[derive(Clone, Copy, Debug)]
pub struct FileText<'f>(pub &'f [u8]);

impl fmt::Display for FileText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(file) = self;
        writeln!(f, "{FILE} bytes={}", file.len())?;
        for (number, row) in file.chunks(TEXT_ROW_BYTES).enumerate() {
            // The zeros at the end of a row are left out, as those between rows are.
            let Some(last) = row.iter().rposition(|byte| *byte != 0) else { continue };
            write!(f, "{:#x}", number * TEXT_ROW_BYTES)?;
            row.iter().take(last + 1).try_for_each(|byte| write!(f, " {byte:02x}"))?;
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Returns the bytes of a file from its text. Lines that begin with `;` are comments.
///
/// # Errors
/// The line that is wrong, and the text that was expected.
pub fn parse(text: &str) -> Result<Vec<u8>, Error> {
    let mut file: Option<Vec<u8>> = None;
    for (index, line) in text.lines().enumerate() {
        let line_text = line.trim();
        let error = |what: &str| Error::Text { line: index + 1, what: what.to_string() };
        if line_text.is_empty() || line_text.starts_with(';') {
            continue;
        }
        match &mut file {
            None => file = Some(vec![0; length_of(line_text).map_err(|what| error(&what))?]),
            Some(file) => write_row(line_text, file).map_err(|what| error(&what))?,
        }
    }
    file.ok_or_else(|| Error::Text {
        line: text.lines().count().max(1),
        what: format!("no line '{FILE} bytes=N', expected one"),
    })
}

/// Returns the length that the first line states.
fn length_of(line: &str) -> Result<usize, String> {
    let number = line.strip_prefix(FILE).and_then(|rest| rest.trim_start().strip_prefix("bytes="));
    let length = number.and_then(|number| number.parse::<u64>().ok());
    let length = length.filter(|length| *length <= MAX_INPUT_BYTES);
    let length = length.and_then(|length| usize::try_from(length).ok());
    length.ok_or_else(|| {
        format!("found '{line}', expected '{FILE} bytes=N' with at most {MAX_INPUT_BYTES} bytes")
    })
}

/// Writes the bytes of a row to the file.
fn write_row(line: &str, file: &mut [u8]) -> Result<(), String> {
    let wrong = || format!("found '{line}', expected an offset and bytes, such as '0x10 00 ff'");
    let mut words = line.split_whitespace();
    let offset = words.next().and_then(|word| word.strip_prefix("0x")).ok_or_else(wrong)?;
    let offset = usize::from_str_radix(offset, 16).map_err(|_| wrong())?;
    for (number, word) in words.enumerate() {
        let byte = u8::from_str_radix(word, 16).map_err(|_| wrong())?;
        let length = file.len();
        let there = offset.checked_add(number).and_then(|at| file.get_mut(at));
        *there.ok_or_else(|| format!("found '{line}', expected bytes before {length:#x}"))? = byte;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_files_turn_into_each_other() {
        let mut sparse = vec![0; 70];
        (sparse[0], sparse[33], sparse[69]) = (0xAB, 1, 0xFF);
        let text = FileText(&sparse).to_string();
        assert_eq!(text, "file bytes=70\n0x0 ab\n0x20 00 01\n0x40 00 00 00 00 00 ff\n");
        for file in [&sparse[..], &[], &[0; 16], &[7; 17]] {
            let text = format!("; a comment\n{}", FileText(file));
            assert_eq!(parse(&text).unwrap(), file);
        }
    }

    #[test]
    fn a_wrong_line_is_named() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert!(error("").starts_with("line 1: no line 'file bytes=N'"));
        for (text, line) in [
            ("file", 1),
            ("file bytes=-1", 1),
            ("file bytes=99999999999999", 1),
            ("file bytes=4\n10 00", 2),
            ("file bytes=4\n0x0 100", 2),
            ("file bytes=4\n0x3 00 01", 2),
            ("file bytes=4\n\n0xffffffffffffffff 00 01", 3),
        ] {
            assert!(error(text).starts_with(&format!("line {line}: found")), "{text}");
        }
    }
}
