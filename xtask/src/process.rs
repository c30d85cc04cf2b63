//! The repository's folder, other processes, and how a subcommand ends.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};

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
    ensure!(status.success(), "{}: {status}, expected success", text_of(command));
    Ok(())
}

/// Runs a command that reports bugs, and returns whether there are new ones.
pub fn finds(command: &mut Command) -> Result<bool> {
    let status = command.status().with_context(|| text_of(command))?;
    match status.code() {
        Some(code @ (0 | 1)) => Ok(code == 1),
        _ => bail!("{}: {status}, expected exit code 0 or 1", text_of(command)),
    }
}

/// Runs a command that must succeed, and returns what it prints. Its errors go to our own standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output().with_context(|| text_of(command))?;
    ensure!(output.status.success(), "{}: {}, expected success", text_of(command), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
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

/// Runs a command that must succeed, and returns what it printed on both streams. The error has the end of it.
pub fn quiet(command: &mut Command) -> Result<String> {
    let (status, output) = captured(command)?;
    ensure!(status.success(), "{}\n{}: {status}", end(&output), text_of(command));
    Ok(output)
}

/// Returns the last lines of a log, for the text of an error.
pub fn end(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// Runs a command, which must end with an exit code and print a text on either stream. Returns all its output.
pub fn expect(command: &mut Command, code: i32, text: &str) -> Result<String> {
    let (status, output) = captured(command)?;
    let is_it = status.code() == Some(code) && output.contains(text);
    let (line, log) = (text_of(command), end(&output));
    ensure!(is_it, "{log}\n{line}: {status}, expected exit code {code} and '{text}'");
    Ok(output)
}

/// Writes a file beside its place and renames it, so that no file is ever incomplete.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().context("a file without a folder")?;
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
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
