//! The command line: one verb per file, each of which parses, calls the library, prints, and answers
//! with an exit code.

mod account;
mod asm;
mod bundle;
mod check;
mod disasm;
mod evidence;
mod examine;
mod export;
mod files;
mod findings;
mod fuzz;
mod map;
mod minimize;
mod once;
mod output;
mod print;
mod qemu;
mod regress;
mod replay;
mod report;
mod runner;
mod size;
mod state;
mod triage;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use qcowfuzz::chain::ChainError;
use qcowfuzz::error::Error;
use qcowfuzz::qcow2::error::MapError;
use qcowfuzz::storage::FileStorage;

/// A structure-aware fuzz harness for qcow2 disk-image code.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Map(map::Arguments),
    Check(check::Arguments),
    Fuzz(fuzz::Arguments),
    #[command(hide = true)]
    FuzzWorker(fuzz::worker::Arguments),
    Triage(triage::Arguments),
    Minimize(minimize::Arguments),
    Replay(replay::Arguments),
    Report(report::Arguments),
    Regress(regress::Arguments),
    Bundle(bundle::Arguments),
    State(state::Arguments),
    Disasm(disasm::Arguments),
    Asm(asm::Arguments),
    Export(export::Arguments),
}

const EXIT_CODES: &str = "\
Exit codes:
  0  nothing was found
  1  a violation was found
  2  the command could not do its work
What writes something from a crash (minimize, report, regress, bundle) exits with 0 where it is \
written; 'check' has the codes of qemu-img check.";

/// How a command that did its work ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// Nothing was found.
    Nothing,
    /// A violation was found.
    Violation,
    /// The answer of `check`.
    Check(check::Answer),
}

impl Exit {
    /// After so many violations.
    fn after(violations: usize) -> Self {
        if violations == 0 { Self::Nothing } else { Self::Violation }
    }
}

/// How a command that could not do its work ends.
#[derive(Debug)]
enum Failure {
    /// What is wrong, where, and what was expected: one line.
    Told(String),
    /// The same for `check`, which has a code of its own for it.
    CheckTold(String),
    /// Whoever reads the output has gone, and wants to hear no more.
    Pipe,
}

impl Failure {
    /// Something is wrong with the file at `path`.
    fn at(path: &Path, what: impl std::fmt::Display) -> Self {
        Self::Told(format!("{}: {what}", path.display()))
    }

    /// Standard output could not be written.
    fn output(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::Pipe,
            _ => Self::Told(format!("standard output: {error}")),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Told(line) | Self::CheckTold(line) => f.write_str(line),
            Self::Pipe => f.write_str("standard output was closed"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Told(error.to_string())
    }
}

type Outcome = Result<Exit, Failure>;

/// Parses the command line and does what it says.
pub fn main() -> ExitCode {
    let outcome = match Arguments::parse().verb {
        Verb::Map(arguments) => map::run(&arguments),
        Verb::Check(arguments) => check::run(&arguments),
        Verb::Fuzz(arguments) => fuzz::run(&arguments),
        Verb::FuzzWorker(arguments) => fuzz::worker::run(&arguments),
        Verb::Triage(arguments) => triage::run(&arguments),
        Verb::Minimize(arguments) => minimize::run(&arguments),
        Verb::Replay(arguments) => replay::run(&arguments),
        Verb::Report(arguments) => report::run(&arguments),
        Verb::Regress(arguments) => regress::run(&arguments),
        Verb::Bundle(arguments) => bundle::run(&arguments),
        Verb::State(arguments) => state::run(&arguments),
        Verb::Disasm(arguments) => disasm::run(&arguments),
        Verb::Asm(arguments) => asm::run(&arguments),
        Verb::Export(arguments) => export::run(&arguments),
    };
    let code = match &outcome {
        Ok(Exit::Nothing) | Err(Failure::Pipe) => 0,
        Ok(Exit::Violation) | Err(Failure::CheckTold(_)) => 1,
        Ok(Exit::Check(answer)) => answer.code(),
        Err(Failure::Told(_)) => 2,
    };
    if let Err(Failure::Told(line) | Failure::CheckTold(line)) = &outcome {
        complain(line);
    }
    ExitCode::from(code)
}

/// A character as it may reach a terminal: what moves its cursor, or turns the direction of writing, is
/// told by its number.
fn shown(character: char) -> String {
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
fn complain(line: &str) {
    use std::io::Write;
    // File names may hold anything; the promise is one line.
    let line: String = line.replace(['\n', '\r'], " ").chars().map(shown).collect();
    let _ = writeln!(std::io::stderr().lock(), "qcowfuzz: {line}");
}

/// Whether `format` (what `-f` says) is one that is read here.
fn check_format(path: &Path, format: Option<&str>) -> Result<(), Failure> {
    match format {
        None | Some("qcow2") => Ok(()),
        Some(other) => Err(Failure::at(
            path,
            format_args!("format '{other}' is not supported, expected qcow2"),
        )),
    }
}

/// Why the chain of the image at `path` could not be opened.
fn not_opened(path: &Path, error: ChainError) -> Failure {
    match error {
        ChainError::Image { path: of, error } if of == path => match FileStorage::open(path) {
            Ok(storage) => malformed(path, &storage, &error),
            Err(error) => error.into(),
        },
        ChainError::File(error) => error.into(),
        error => Failure::Told(error.to_string()),
    }
}

/// What is wrong with an image, with a word on its file where that explains it.
fn malformed(path: &Path, storage: &FileStorage, error: &MapError) -> Failure {
    use qcowfuzz::qcow2::header::V3_LENGTH_BYTES;
    use qcowfuzz::storage::Storage;
    let length = storage.length_bytes();
    match error {
        MapError::NotQcow2 { .. } if length == 0 => {
            Failure::at(path, "not a qcow2 image: the file is empty")
        }
        MapError::NotQcow2 { .. } | MapError::Header { .. }
            if length < u64::from(V3_LENGTH_BYTES) =>
        {
            Failure::at(path, format_args!("{error} (the file ends after {length} bytes)"))
        }
        error => Failure::at(path, error),
    }
}
