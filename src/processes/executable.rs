//! A program with its arguments, and the way in which it starts.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::end::ProcessEnd;
use super::outputs::Outputs;
use super::process::Process;

/// A part of a shell's line: when the process that started the shell has ended, it ends the shell and all that it has
/// started. If the former is killed, no destructor runs, and a process that computes does not notice the end of its
/// input. The watch is no child of the process, and holds none of its pipes.
const WATCH: &str =
    "({ while kill -0 $PPID; do sleep 1; done; kill -KILL 0; } </dev/null >/dev/null 2>&1 &)";

/// An executable with its first arguments.
#[derive(Clone, Debug, Default)]
pub struct Executable {
    path: PathBuf,
    arguments: Vec<OsString>,
    folder: Option<PathBuf>,
    environment: Vec<(&'static str, OsString)>,
    /// The process stays in the group of this process.
    shares_group: bool,
}

impl Executable {
    /// Returns the executable at `path`. Every call passes `arguments` first.
    pub fn new(path: impl Into<PathBuf>, arguments: impl IntoIterator<Item = OsString>) -> Self {
        let (path, arguments) = (path.into(), arguments.into_iter().collect());
        Self { path, arguments, ..Self::default() }
    }

    /// Returns a shell that runs `text`. The shell splits the text, but not the arguments that follow.
    pub(crate) fn shell(text: &str) -> Self {
        Self::new("sh", ["-c", &format!("{text} \"$@\""), "sh"].map(OsString::from))
    }

    /// Returns a shell that becomes the command `line`, so that its CPU time and its end are those of the command. The
    /// address space is bounded, unless the command raises the limit by `ulimit`. The process ends with this process.
    pub(crate) fn command(line: &str, max_memory_kib: u64) -> Self {
        let text = format!("{WATCH}; ulimit -S -v {max_memory_kib} || exit 2; eval \"exec $0\"");
        Self::new("/bin/sh", ["-c", &text, line].map(OsString::from))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds arguments.
    pub(crate) fn with(mut self, more: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.arguments.extend(more.into_iter().map(|it| it.as_ref().to_os_string()));
        self
    }

    /// Has the process work in a folder, if there is one.
    pub(crate) fn in_folder(self, folder: Option<&Path>) -> Self {
        Self { folder: folder.map(Path::to_path_buf), ..self }
    }

    /// Sets a variable in the environment of the process.
    pub(crate) fn with_variable(mut self, name: &'static str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name, value.as_ref().to_os_string()));
        self
    }

    /// Keeps the process in the group of this process: Ctrl-C at the terminal ends it, too. It is stopped without its
    /// children.
    pub(crate) fn sharing_group(self) -> Self {
        Self { shares_group: true, ..self }
    }

    /// Starts the process, with pipes for its input and its outputs.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(crate) fn start(&self) -> io::Result<(Process, Outputs)> {
        let mut process = self.spawn(Stdio::piped)?;
        let outputs = process.take_outputs()?;
        Ok((process, outputs))
    }

    /// Runs the process to its end, without input and without outputs.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(crate) fn run_silently(&self) -> io::Result<ProcessEnd> {
        self.spawn(Stdio::null)?.wait()
    }

    fn spawn(&self, stdio: fn() -> Stdio) -> io::Result<Process> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).stdin(stdio()).stdout(stdio()).stderr(stdio());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.folder.as_deref().unwrap_or(Path::new(".")));
        if !self.shares_group {
            command.process_group(0);
        }
        Process::spawn(&mut command, self.shares_group)
    }
}
