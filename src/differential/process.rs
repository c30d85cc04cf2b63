//! Runs one program to its end, and keeps all that it prints.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::{Deserialize, Serialize};
use wait4::{ResUse, Wait4};

use super::survivors::MARK;

/// The maximum length of each output. A map of a million extents has 150 MB.
const MAX_OUTPUT_BYTES: usize = 256 << 20;
/// The bytes that one read takes from a pipe. Most outputs are shorter, and a larger buffer takes longer to clear.
const OUTPUT_PIECE_BYTES: usize = 8 << 10;
/// The longest time between two checks whether a process has ended that closed its outputs. Most end at once.
const MAX_END_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplyEnd {
    /// It exited with this code.
    Exit(i32),
    /// This signal ended it.
    Signal(i32),
    /// It was killed, because its time was over.
    Timeout,
    /// It was killed, because it printed more than 256 MiB.
    TooMuchOutput,
}

impl ReplyEnd {
    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exit(code),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }

    /// Returns the exit code, if the program ended by itself.
    pub fn code(self) -> Option<i32> {
        match self {
            Self::Exit(code) => Some(code),
            _ => None,
        }
    }
}

impl fmt::Display for ReplyEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exit {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Timeout => f.write_str("timeout"),
            Self::TooMuchOutput => f.write_str("too much output"),
        }
    }
}

/// The end and the outputs of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How the program ended.
    pub end: ReplyEnd,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

impl Reply {
    /// Reports whether the program succeeded.
    pub fn is_success(&self) -> bool {
        self.end == ReplyEnd::Exit(0)
    }

    /// Returns the text of both outputs.
    pub fn text(&self) -> String {
        format!("{}{}", String::from_utf8_lossy(&self.stdout), self.message())
    }

    /// Returns the text of standard error.
    pub fn message(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// Runs a program in a folder. Its messages are in English, and its dates in UTC. Returns its CPU time, too, with that
/// of the processes for which it has waited.
///
/// # Errors
/// The program cannot be started, or the system does not pass on its outputs.
pub fn run(
    program: &Path,
    arguments: &[String],
    folder: &Path,
    timeout: Duration,
) -> io::Result<(Reply, Duration)> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).env("TZ", "UTC").env("LC_ALL", "C");
    command.env(MARK, folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Ctrl-C at the terminal is for the campaign, and a time limit ends the children of a shell, too.
    command.process_group(0);
    let mut child = command.spawn()?;
    let answer = collect(&mut child, timeout);
    if answer.is_err() {
        // The first failure is the one to report.
        let _ = kill(&mut child);
    }
    answer
}

/// Ends a program and its children, and waits for it.
fn kill(child: &mut Child) -> io::Result<ResUse> {
    // The group is gone if its processes have ended by themselves.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    reap(child)
}

/// Waits for a program that has ended, or that a signal ends.
fn reap(child: &mut Child) -> io::Result<ResUse> {
    loop {
        match child.wait4() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            ended => return ended,
        }
    }
}

/// An output of a program that is still read.
struct Output<P> {
    pipe: Option<P>,
    bytes: Vec<u8>,
}

impl<P: Read> Output<P> {
    fn new(pipe: Option<P>) -> Self {
        Self { pipe, bytes: Vec::new() }
    }

    /// Reads what a pipe holds that is ready. Its end closes the pipe.
    fn read(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let mut chunk = [0; OUTPUT_PIECE_BYTES];
        match pipe.read(&mut chunk)? {
            0 => self.pipe = None,
            length => self.bytes.extend_from_slice(&chunk[..length]),
        }
        Ok(())
    }
}

fn collect(child: &mut Child, timeout: Duration) -> io::Result<(Reply, Duration)> {
    let deadline = Instant::now().checked_add(timeout);
    let mut stdout = Output::new(child.stdout.take());
    let mut stderr = Output::new(child.stderr.take());
    let mut killed = None;
    while killed.is_none() && (stdout.pipe.is_some() || stderr.pipe.is_some()) {
        let left = deadline.map_or(timeout, |at| at.saturating_duration_since(Instant::now()));
        let (out, error) = ready(stdout.pipe.as_ref(), stderr.pipe.as_ref(), left)?;
        if out {
            stdout.read()?;
        }
        if error {
            stderr.read()?;
        }
        if left.is_zero() {
            killed = Some(ReplyEnd::Timeout);
        } else if stdout.bytes.len().max(stderr.bytes.len()) > MAX_OUTPUT_BYTES {
            killed = Some(ReplyEnd::TooMuchOutput);
        }
    }
    if killed.is_none() && !ends_before(child, deadline)? {
        killed = Some(ReplyEnd::Timeout);
    }
    let ended = if killed.is_some() { kill(child) } else { reap(child) }?;
    let end = killed.unwrap_or(ReplyEnd::of(ended.status));
    let cpu = ended.rusage.utime.saturating_add(ended.rusage.stime);
    Ok((Reply { end, stdout: stdout.bytes, stderr: stderr.bytes }, cpu))
}

/// Waits until one of the pipes can be read, or was closed, or the time is over.
fn ready(
    stdout: Option<&impl AsFd>,
    stderr: Option<&impl AsFd>,
    timeout: Duration,
) -> io::Result<(bool, bool)> {
    let mut fds = Vec::with_capacity(2);
    fds.extend(stdout.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
    fds.extend(stderr.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok((false, false)),
        Err(error) => return Err(error.into()),
    }
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    let out = stdout.is_some() && ready.next().unwrap_or(false);
    Ok((out, ready.next().unwrap_or(false)))
}

/// Waits until a process that has closed its outputs ends. Returns false if its time is over.
fn ends_before(child: &Child, deadline: Option<Instant>) -> io::Result<bool> {
    // The process stays, so that `reap` gets its CPU time.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let mut interval = Duration::from_micros(20);
    loop {
        match waitid(WaitId::Pid(Pid::from_child(child)), options) {
            Ok(Some(_)) => return Ok(true),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if deadline.is_some_and(|at| Instant::now() >= at) {
            return Ok(false);
        }
        std::thread::sleep(interval);
        interval = interval.saturating_mul(2).min(MAX_END_CHECK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str, seconds: u64) -> Reply {
        let arguments = ["-c", line].map(str::to_string);
        run(Path::new("sh"), &arguments, Path::new("."), Duration::from_secs(seconds)).unwrap().0
    }

    #[test]
    fn the_cpu_time_has_that_of_children() {
        let of = |line: &str| {
            let arguments = ["-c", line].map(str::to_string);
            run(Path::new("sh"), &arguments, Path::new("."), Duration::from_secs(60)).unwrap().1
        };
        let count = "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done";
        let idle = of("sleep 0.2");
        // The inner shell counts, and the outer one waits for it.
        let busy = of(&format!("sh -c '{count}'; true"));
        assert!(busy > idle.saturating_mul(4), "{busy:?}, {idle:?}");
    }

    #[test]
    fn outputs_and_ends_are_kept() {
        let answer = shell("printf out; printf err >&2; exit 3", 60);
        assert_eq!((answer.end, answer.is_success()), (ReplyEnd::Exit(3), false));
        assert_eq!((answer.stdout, answer.stderr), (b"out".to_vec(), b"err".to_vec()));
        assert_eq!(shell("kill -9 $$", 60).end, ReplyEnd::Signal(9));
        // More than two pipes hold, on both outputs.
        let long = shell("head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2", 60);
        assert_eq!((long.stdout.len(), long.stderr.len()), (300_000, 300_000));
    }

    #[test]
    fn a_hanging_program_is_killed() {
        let answer = shell("printf begun; exec sleep 100", 1);
        assert_eq!((answer.end, answer.stdout), (ReplyEnd::Timeout, b"begun".to_vec()));
        // It hangs after it closed its outputs.
        assert_eq!(shell("exec sleep 100 >&- 2>&-", 1).end, ReplyEnd::Timeout);
        // A child of the shell holds the pipes.
        let begun = Instant::now();
        assert_eq!(shell("sleep 100; true", 1).end, ReplyEnd::Timeout);
        assert!(begun.elapsed() < Duration::from_secs(50));
    }

    #[test]
    fn a_program_that_is_missing_is_an_error() {
        let missing = run(Path::new("/no/such"), &[], Path::new("."), Duration::from_secs(1));
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
