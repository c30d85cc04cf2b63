//! Prints the result of a command: as text, or as one JSON object.

use std::fmt::{self, Display};
use std::io::{self, BufWriter, Stdout, Write};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::ser::PrettyFormatter;

use super::exit::CommandError;

/// Returns standard output behind a buffer: without it, each line is a system call. It holds no lock, so that a thread
/// of an engine can print accesses meanwhile.
pub fn buffered_stdout() -> BufWriter<Stdout> {
    BufWriter::new(io::stdout())
}

/// Standard output without a buffer, for what a process prints before it may end.
pub struct UnbufferedStdout;

impl fmt::Write for UnbufferedStdout {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut out = io::stdout();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|_| fmt::Error)
    }
}

/// Returns a progress line. It is shown only on a terminal.
pub fn spinner() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::new_spinner().with_style(style)
}

/// Returns a number with its noun, for example `1 input` or `2 inputs`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Writes a value as JSON, indented as qemu-img indents it.
pub fn json_of_qemu_img(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    let formatter = PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, formatter);
    value.serialize(&mut serializer)?;
    out.write_all(b"\n")
}

/// Prints one line to standard output. A closed pipe is not a failure.
pub fn say(line: impl Display) -> Result<(), CommandError> {
    print(&(), false, |(), out| writeln!(out, "{line}"))
}

/// Prints `result` to standard output, with `lines` or as JSON. A closed pipe is not a failure.
pub fn print<T: Serialize>(
    result: &T,
    json: bool,
    lines: impl FnOnce(&T, &mut BufWriter<Stdout>) -> io::Result<()>,
) -> Result<(), CommandError> {
    let mut out = buffered_stdout();
    let printed = match json {
        true => serde_json::to_writer(&mut out, result)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out)),
        false => lines(result, &mut out),
    };
    match printed.and_then(|()| out.flush()).map_err(|error| CommandError::output(&error)) {
        Ok(()) | Err(CommandError::Pipe) => Ok(()),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// An engine may read in a thread of its own, and wait for it.
    #[test]
    fn another_thread_prints_while_a_command_has_its_output() {
        let _out = buffered_stdout();
        let thread = std::thread::spawn(|| UnbufferedStdout.write_str(""));
        assert_eq!(thread.join().unwrap(), Ok(()));
    }
}
