//! A running process: how it is started, how its outputs are read, how it is stopped, and how its end is found out.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::retry_on_intr;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use smallvec::SmallVec;

use super::end::ProcessEnd;

/// The longest time between two checks whether a process has ended. Most end at once.
const MAX_END_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// A process, which is stopped with this value. All processes of its group end with it, also if it ends by itself.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    shares_group: bool,
    ended: Option<ProcessEnd>,
}

impl Process {
    pub(super) fn spawn(command: &mut Command, shares_group: bool) -> io::Result<Self> {
        Ok(Self { child: command.spawn()?, shares_group, ended: None })
    }

    fn take_outputs(&mut self) -> io::Result<Outputs> {
        Outputs::new(self.child.stdout.take(), self.child.stderr.take())
    }

    /// Returns the number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the pipe to standard input, if it is open.
    pub(super) fn input(&mut self) -> &mut Option<ChildStdin> {
        &mut self.child.stdin
    }

    /// Closes standard input.
    pub(crate) fn close_input(&mut self) {
        self.child.stdin = None;
    }

    /// Waits until the process ends.
    ///
    /// # Errors
    /// The system cannot wait for the process.
    pub(crate) fn wait(&mut self) -> io::Result<ProcessEnd> {
        if self.ended.is_none() {
            // Others of its group live until then.
            self.has_ended(WaitIdOptions::empty())?;
        }
        self.stop()
    }

    /// Waits until the process ends, but not after `deadline`. Returns `None` if it has not ended then.
    ///
    /// # Errors
    /// The system cannot wait for the process.
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> io::Result<Option<ProcessEnd>> {
        let mut interval = Duration::from_micros(20);
        while self.ended.is_none() && !self.has_ended(WaitIdOptions::NOHANG)? {
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(interval);
            interval = interval.saturating_mul(2).min(MAX_END_CHECK_INTERVAL);
        }
        self.stop().map(Some)
    }

    /// Reports whether the process has ended. The process stays: as long as the system keeps its number, no other group
    /// gets that.
    fn has_ended(&self, options: WaitIdOptions) -> io::Result<bool> {
        let options = options | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let id = Pid::from_child(&self.child);
        Ok(retry_on_intr(|| waitid(WaitId::Pid(id), options))?.is_some())
    }

    /// Stops the process with all that it has started, unless it has ended. Returns its end.
    ///
    /// # Errors
    /// The system cannot wait for the process.
    pub(crate) fn stop(&mut self) -> io::Result<ProcessEnd> {
        if let Some(end) = self.ended {
            return Ok(end);
        }
        let pid = Pid::from_child(&self.child);
        // Each fails if all processes have ended already.
        let _ = match self.shares_group {
            true => kill_process(pid, Signal::KILL),
            false => kill_process_group(pid, Signal::KILL),
        };
        self.has_ended(WaitIdOptions::empty())?;
        let end = ProcessEnd::of(self.child.wait()?);
        self.ended = Some(end);
        Ok(end)
    }

    /// Reports whether all threads of the running process wait for something, as Linux reports it; `None` if the system
    /// has no such report.
    pub(super) fn is_asleep(&self) -> Option<bool> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id())).ok()?;
        for thread in threads {
            // A thread may have ended meanwhile.
            let Ok(stat) = std::fs::read_to_string(thread.ok()?.path().join("stat")) else {
                continue;
            };
            let (_, fields) = stat.rsplit_once(") ")?;
            if !fields.starts_with('S') {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Returns the CPU time of the running process, as Linux reports it.
    pub(super) fn cpu_time(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).ok()?;
        // The name of the executable, which may contain anything, is in brackets.
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut times = fields.split(' ').skip(11).map(|field| field.parse::<u64>().ok());
        let ticks = times.next()??.checked_add(times.next()??)?;
        let in_second = rustix::param::clock_ticks_per_second();
        Some(Duration::from_millis(ticks.checked_mul(1000)?.checked_div(in_second)?))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process for which the system cannot wait has ended.
        let _ = self.stop();
    }
}

/// The first part of a shell command: a watch that ends the shell and all that it has started, when the process that
/// started the shell has ended. The watch is needed if that process is killed: then no destructor runs, and a command
/// that computes does not notice the end of its input. The watch is no child of the shell, and holds none of its pipes.
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

    /// Returns the folder of the process, if it has one of its own.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
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

/// The largest number of bytes that are read from a pipe at once: as many as a pipe holds.
const PIPE_BYTES: u64 = 64 << 10;

/// The standard output and the standard error of a process.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub(super) stdout: Output<ChildStdout>,
    pub(super) stderr: Output<ChildStderr>,
}

/// An output.
#[derive(Debug)]
pub(super) struct Output<P> {
    /// `None` when the process has closed it.
    pipe: Option<P>,
    /// The bytes that were read, and not taken yet.
    pub(super) bytes: Vec<u8>,
}

impl<P: Read + AsFd> Output<P> {
    fn new(pipe: Option<P>) -> io::Result<Self> {
        pipe.as_ref().map_or(Ok(()), do_not_wait)?;
        Ok(Self { pipe, bytes: Vec::new() })
    }

    /// Reports whether the process has closed the output.
    pub(super) fn is_closed(&self) -> bool {
        self.pipe.is_none()
    }

    /// Reads the bytes that the pipe holds.
    pub(super) fn read(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        match pipe.take(PIPE_BYTES).read_to_end(&mut self.bytes) {
            Ok(read) if read as u64 == PIPE_BYTES => {}
            Ok(_) => self.pipe = None,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Outputs {
    pub(super) fn new(
        stdout: Option<ChildStdout>,
        stderr: Option<ChildStderr>,
    ) -> io::Result<Self> {
        Ok(Self { stdout: Output::new(stdout)?, stderr: Output::new(stderr)? })
    }

    /// Waits until a pipe is ready, but not longer than `timeout`, and reads both outputs. `input` is a pipe that has
    /// to take bytes.
    pub(super) fn read(&mut self, input: Option<&ChildStdin>, timeout: Duration) -> io::Result<()> {
        self.wait(input, timeout)?;
        self.stderr.read()?;
        self.stdout.read()
    }

    fn wait(&self, input: Option<&ChildStdin>, timeout: Duration) -> io::Result<()> {
        let mut pipes = SmallVec::<[_; 3]>::new();
        // The end of a pipe would be ready forever.
        pipes.extend(self.stdout.pipe.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        pipes.extend(self.stderr.pipe.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        pipes.extend(input.map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        let timeout = Timespec::try_from(timeout).ok();
        retry_on_intr(|| poll(&mut pipes, timeout.as_ref()))?;
        Ok(())
    }

    /// Removes all but the last bytes of standard error.
    pub(super) fn shorten_stderr(&mut self, kept_bytes: usize) {
        let surplus = self.stderr.bytes.len().saturating_sub(kept_bytes);
        self.stderr.bytes.drain(..surplus);
    }

    /// Returns the text of standard error that was read.
    pub(super) fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr.bytes).into_owned()
    }

    /// Passes the lines of standard output on until the process closes it. Returns the last text of standard error, of
    /// at most `kept_bytes` bytes.
    ///
    /// # Errors
    /// A pipe cannot be read.
    pub(crate) fn each_line(
        mut self,
        kept_bytes: usize,
        pass: &mut dyn FnMut(&[u8]),
    ) -> io::Result<String> {
        while !self.stdout.is_closed() {
            self.read(None, Duration::MAX)?;
            self.shorten_stderr(kept_bytes);
            while let Some(end) = self.stdout.bytes.iter().position(|byte| *byte == b'\n') {
                pass(&self.stdout.bytes[..end]);
                self.stdout.bytes.drain(..=end);
            }
        }
        self.stderr.read()?;
        self.shorten_stderr(kept_bytes);
        Ok(self.stderr_text())
    }
}

/// Has reads and writes of a pipe fail in place of waiting.
pub(super) fn do_not_wait(pipe: &impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(pipe)?;
    Ok(fcntl_setfl(pipe, flags | OFlags::NONBLOCK)?)
}
