//! The repository's folder, other processes, and how a subcommand ends.

use std::fmt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// A check that failed. Other errors mean that the program could not work.
#[derive(Debug)]
pub struct Failed(pub String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

/// Returns the error of a check that failed.
pub fn failed(message: impl Into<String>) -> anyhow::Error {
    Failed(message.into()).into()
}

/// Prints an error, and returns the exit code of a result.
pub fn exit_code(result: Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("xtask: {error:#}");
    ExitCode::from(if error.is::<Failed>() { 1 } else { 2 })
}

/// Returns a command that runs in the root of the repository.
pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// Returns the text of a command for people.
pub fn text_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs a command that must succeed, with our own standard streams.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| text_of(command))?;
    match status.success() {
        true => Ok(()),
        false => bail!("{}: {status}, expected success", text_of(command)),
    }
}

/// Runs a command that must succeed, and returns what it prints. Its errors go to our own standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output().with_context(|| text_of(command))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => bail!("{}: {}, expected success", text_of(command), output.status),
    }
}
