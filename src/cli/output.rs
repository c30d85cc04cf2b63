//! The output of a command: its result as text or as one JSON object, its files, its failure and its exit code.

use std::fmt::{self, Display};
use std::io::{self, BufWriter, Stdout, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::ser::PrettyFormatter;

use crate::base::error::Error;
use crate::base::files::{self, Existing};
use crate::differential::campaign::DifferentialError;
use crate::disk::error::FileError;
use crate::findings::isolation::IsolationError;
use crate::findings::triage::KnownBugsError;
use crate::recipes::perform::ToolError;

/// The result of a command that did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Nothing was found.
    Nothing,
    /// A violation was found.
    Violation,
    /// The exit code of `check`.
    Check(u8),
}

impl Exit {
    /// Returns the exit for a number of violations.
    pub fn after(violations: usize) -> Self {
        if violations == 0 { Self::Nothing } else { Self::Violation }
    }
}

/// The reason why a command could not do its work.
#[derive(Debug)]
pub enum CommandError {
    /// One line for the user: the place, the fault, and what was expected.
    Message(String),
    /// The same line for a command that has the exit codes of qemu-img.
    AsInQemuImg(String),
    /// The reader of standard output has closed it.
    Pipe,
}

impl CommandError {
    /// Returns the failure of a command because of the file at `path`.
    pub fn at(path: &Path, what: impl std::fmt::Display) -> Self {
        Self::Message(format!("{}: {what}", path.display()))
    }

    /// Returns the same failure, with the exit code of qemu-img.
    pub fn with_exit_code_of_qemu_img(self) -> Self {
        match self {
            Self::Message(line) => Self::AsInQemuImg(line),
            failure => failure,
        }
    }

    /// Returns the failure to write to standard output.
    pub fn output(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::Pipe,
            _ => Self::Message(format!("standard output: {error}")),
        }
    }
}

impl std::fmt::Display for CommandError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Message(line) | Self::AsInQemuImg(line) => f.write_str(line),
            Self::Pipe => f.write_str("standard output was closed"),
        }
    }
}

/// The message about an output file that exists.
const OUTPUT_EXISTS: &str = "the file exists, expected a new one or --force";

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        match error {
            Error::Exists { path } => Self::at(&path, OUTPUT_EXISTS),
            error => Self::Message(error.to_string()),
        }
    }
}

macro_rules! messages {
    ($($error:ty),+) => {
        $(impl From<$error> for CommandError {
            fn from(error: $error) -> Self {
                Self::Message(error.to_string())
            }
        })+
    };
}

messages!(DifferentialError, FileError, IsolationError, KnownBugsError, ToolError);

pub type ExitResult = Result<Exit, CommandError>;

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
    print_with(|out| match json {
        true => {
            serde_json::to_writer(&mut *out, result)?;
            writeln!(out)
        }
        false => lines(result, out),
    })
}

/// Calls `write` with standard output behind a buffer. A closed pipe is not a failure.
pub fn print_with(
    write: impl FnOnce(&mut BufWriter<Stdout>) -> io::Result<()>,
) -> Result<(), CommandError> {
    let mut out = buffered_stdout();
    let printed = write(&mut out).and_then(|()| out.flush());
    match printed.map_err(|error| CommandError::output(&error)) {
        Ok(()) | Err(CommandError::Pipe) => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Returns whether the file at `output` may be replaced. Rejects the input of the command as its output.
pub fn not_the_input(output: &Path, input: &Path, force: bool) -> Result<Existing, CommandError> {
    let same = || input.canonicalize().ok().zip(output.canonicalize().ok());
    match output.symlink_metadata() {
        Ok(_) if !force => Err(CommandError::at(output, OUTPUT_EXISTS)),
        _ if same().is_some_and(|(input, output)| input == output) => {
            Err(CommandError::at(output, "is the input file, expected another file"))
        }
        _ => Ok(Existing::forced(force)),
    }
}

/// Writes `bytes` to the file at `path`.
pub fn save(path: &Path, existing: Existing, bytes: &[u8]) -> Result<(), CommandError> {
    Ok(files::create(path, existing, |mut file| file.write_all(bytes))?)
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    /// An engine may read in a thread of its own, and wait for it.
    #[test]
    fn another_thread_prints_while_a_command_has_its_output() {
        let _out = buffered_stdout();
        let thread = std::thread::spawn(|| UnbufferedStdout.write_str(""));
        assert_eq!(thread.join().unwrap(), Ok(()));
    }
}
