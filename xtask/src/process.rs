//! The repository's folder, other processes, and how a subcommand ends.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::LazyLock;

use anyhow::{Context, Result, bail};

/// The variable that names another copy of the repository, in which this program then works.
pub const ROOT: &str = "XTASK_ROOT";

/// The root of the repository.
pub fn root() -> &'static Path {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| match std::env::var_os(ROOT) {
        Some(copy) => copy.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).into(),
    });
    &PATH
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

/// Returns the error of a check that failed unless a condition holds: [`anyhow::ensure`] for checks.
#[macro_export]
macro_rules! check {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err($crate::process::failed(format!($($message)+)));
        }
    };
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

/// Runs a check, with our own standard streams. The result is [`Failed`] if the command fails.
pub fn passes(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| text_of(command))?;
    match status.success() {
        true => Ok(()),
        false => Err(failed(format!("{}: {status}, expected success", text_of(command)))),
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

/// Returns cargo's target folder of a workspace, which `CARGO_TARGET_DIR` may name.
pub fn target_folder(workspace: &str) -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    root().join(named.unwrap_or_else(|| Path::new(workspace).join("target")))
}

/// Returns a command that runs in the root of the repository, and that the kernel interrupts if this program ends.
pub fn attached(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = command("setpriv");
    command.args(["--pdeathsig", "INT"]).arg(program);
    command
}

/// Runs a command, and returns how it ended and what it printed on both streams.
pub fn captured(command: &mut Command) -> Result<(ExitStatus, String)> {
    let (mut reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| text_of(command))?;
    // Closes our ends for writing, so that the output ends with the process.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut output = Vec::new();
    reader.read_to_end(&mut output)?;
    Ok((child.wait()?, String::from_utf8_lossy(&output).into_owned()))
}

/// Runs a command that must succeed, and returns what it printed on both streams. Prints the end of it if it fails.
pub fn quiet(command: &mut Command) -> Result<String> {
    let (status, output) = captured(command)?;
    if !status.success() {
        print_end(&output);
        bail!("{}: {status}, expected success", text_of(command));
    }
    Ok(output)
}

/// Prints the last lines of a log, above the reason of a failure.
pub fn print_end(log: &str) {
    let lines: Vec<_> = log.lines().collect();
    eprintln!("{}", lines[lines.len().saturating_sub(60)..].join("\n"));
}

/// Runs a command, which must end with an exit code and print a text on either stream. Returns all its output.
pub fn expect(command: &mut Command, code: i32, text: &str) -> Result<String> {
    let (status, output) = captured(command)?;
    if status.code() != Some(code) || !output.contains(text) {
        print_end(&output);
        let line = text_of(command);
        return Err(failed(format!("{line}: {status}, expected exit code {code} and '{text}'")));
    }
    Ok(output)
}

/// Returns the text of a file of the repository.
pub fn read(name: &str) -> Result<String> {
    std::fs::read_to_string(root().join(name)).with_context(|| name.to_owned())
}

/// Returns all files of a folder and of the folders in it, in the order of their paths.
pub fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        match path.is_dir() && !path.is_symlink() {
            true => found.append(&mut files_below(&path)?),
            false => found.push(path),
        }
    }
    found.sort();
    Ok(found)
}

/// Installs Python packages into a folder below `target/`, unless they are there, and returns the folder of programs.
pub fn python(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let folder = root().join("target").join(name);
    let pip = folder.join("bin/pip");
    // The programs name the folder in which they were installed, and fail if it has gone.
    if !captured(command(&pip).arg("--version")).is_ok_and(|it| it.0.success()) {
        run(command("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    }
    run(command(pip).args(["install", "-q", "--disable-pip-version-check"]).args(packages))?;
    Ok(folder.join("bin"))
}
