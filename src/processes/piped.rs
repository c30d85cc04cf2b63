//! A process that answers on its standard output what is asked on its standard input, within limits of time.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::end::ProcessEnd;
use super::process::{Executable, Outputs, Process, do_not_wait};

/// The time that a process has to end after it has closed its output, at least.
const END_LIMIT: Duration = Duration::from_secs(2);

/// The longest time between two looks at the threads of a process.
const MAX_LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// The time for a process to work where the system does not report whether it does.
const UNKNOWN_WORK: Duration = Duration::from_millis(20);

/// The bounds of an exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The time.
    pub(crate) time: TimeLimit,
    /// The largest number of bytes of an output that are kept and not taken.
    pub(crate) unread_bytes: usize,
    /// The largest number of bytes that the files of its folder store, if it has a folder of its own.
    pub(crate) stored_bytes: u64,
}

/// The reason why there are no answers.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// The process ended, or it was stopped at a bound.
    Ended(ProcessEnd),
    /// The process has closed its standard input or output, and lives on.
    Closed,
    /// The process wrote something that is no answer, as this line says.
    Wrong(String),
    /// The system refused something.
    Failed(io::Error),
}

impl From<io::Error> for NoAnswer {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Takes answers from bytes. Returns the number of bytes that it takes, and whether it needs no more.
pub(crate) type TakeAnswers<'t> = dyn FnMut(&[u8]) -> Result<(usize, bool), String> + 't;

/// A process with pipes. It is stopped with this value.
#[derive(Debug)]
pub(crate) struct PipedProcess {
    pub(super) process: Process,
    pub(super) outputs: Outputs,
    folder: Option<PathBuf>,
    /// The number of bytes of standard error that are kept.
    kept_error_bytes: usize,
}

impl PipedProcess {
    /// Starts a process. The last `kept_error_bytes` of its standard error are kept.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(crate) fn start(executable: &Executable, kept_error_bytes: usize) -> io::Result<Self> {
        let (mut process, outputs) = executable.start()?;
        process.input().as_ref().map_or(Ok(()), do_not_wait)?;
        let folder = executable.folder().map(Path::to_path_buf);
        Ok(Self { process, outputs, folder, kept_error_bytes })
    }

    /// Waits until all threads of the process wait for something, but not longer than `longest`. Where the system does
    /// not report that, waits some milliseconds. A thread may wake another one between the looks at both, and wait
    /// then: two calls see more than one.
    pub(crate) fn wait_until_asleep(&self, longest: Duration) {
        let (start, mut interval) = (Instant::now(), Duration::from_micros(20));
        while start.elapsed() < longest {
            match self.process.is_asleep() {
                Some(true) => return,
                Some(false) => {
                    std::thread::sleep(interval);
                    interval = interval.saturating_mul(2).min(MAX_LOOK_INTERVAL);
                }
                None => return std::thread::sleep(UNKNOWN_WORK),
            }
        }
    }

    /// Returns the bytes of standard output that are no part of an answer.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.outputs.stdout.bytes
    }

    /// Returns the last text on standard error.
    pub(crate) fn stderr_text(&self) -> String {
        self.outputs.stderr_text()
    }

    /// Closes standard input, and stops the process unless it ends in time.
    pub(crate) fn finish(&mut self, limit: Duration) {
        self.process.close_input();
        // The answers are complete: how the process ends does not matter.
        let _ = self.process.wait_until(Instant::now() + limit);
        let _ = self.process.stop();
    }

    /// Writes `questions`, and reads until `take` has all answers. `take` gets all bytes that it has not taken, and
    /// returns the number of bytes that it takes, and whether it needs no more.
    pub(crate) fn exchange(
        &mut self,
        questions: &[u8],
        take: &mut TakeAnswers<'_>,
        bounds: Bounds,
    ) -> Result<(), NoAnswer> {
        let mut unsent = questions;
        let mut clock = Clock::new(bounds.time);
        loop {
            let unread = &mut self.outputs.stdout.bytes;
            let (taken, is_complete) = take(unread).map_err(NoAnswer::Wrong)?;
            unread.drain(..taken);
            if is_complete && unsent.is_empty() {
                return nothing_more(unread);
            }
            let before = unread.len();
            if before.max(self.outputs.stderr.bytes.len()) > bounds.unread_bytes {
                return Err(self.stopped(ProcessEnd::TooMuchOutput)?);
            }
            let cannot_send = self.process.input().is_none() && !unsent.is_empty();
            if self.outputs.stdout.is_closed() || cannot_send {
                return Err(self.closed(clock.interval().max(END_LIMIT))?);
            }
            if clock.is_over(&self.process) {
                return Err(self.stopped(ProcessEnd::Timeout)?);
            }
            let input = self.process.input().as_ref().filter(|_| !unsent.is_empty());
            self.outputs.read(input, clock.interval())?;
            self.outputs.shorten_stderr(self.kept_error_bytes);
            self.send(&mut unsent);
            if self.outputs.stdout.bytes.len() > before {
                clock.progress();
            } else if self.folder.as_deref().map_or(0, stored_bytes) > bounds.stored_bytes {
                // Looked at while it prints nothing, about ten times a second.
                return Err(self.stopped(ProcessEnd::TooMuchOutput)?);
            }
        }
    }

    /// Writes as many bytes as the pipe takes. A pipe that takes none any more is closed.
    fn send(&mut self, unsent: &mut &[u8]) {
        let Some(pipe) = self.process.input().as_mut().filter(|_| !unsent.is_empty()) else {
            return;
        };
        match pipe.write(unsent) {
            Ok(written) => *unsent = unsent.get(written..).unwrap_or_default(),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.process.close_input(),
        }
    }

    /// Stops a process at a bound.
    fn stopped(&mut self, end: ProcessEnd) -> io::Result<NoAnswer> {
        self.process.stop()?;
        self.read_last_errors()?;
        Ok(NoAnswer::Ended(end))
    }

    /// Returns the end of a process that has closed a pipe, if it ends in time.
    fn closed(&mut self, limit: Duration) -> io::Result<NoAnswer> {
        let ended = self.process.wait_until(Instant::now() + limit)?;
        self.read_last_errors()?;
        Ok(ended.map_or(NoAnswer::Closed, NoAnswer::Ended))
    }

    fn read_last_errors(&mut self) -> io::Result<()> {
        self.outputs.stderr.read()?;
        self.outputs.shorten_stderr(self.kept_error_bytes);
        Ok(())
    }
}

/// Returns the number of bytes that the files of a folder store, without their holes. A file that the process deletes
/// or hides meanwhile stores nothing.
fn stored_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let blocks = entries.filter_map(|entry| Some(entry.metadata().ok()?.blocks()));
    blocks.fold(0, u64::saturating_add).saturating_mul(512)
}

fn nothing_more(unread: &[u8]) -> Result<(), NoAnswer> {
    match unread.len() {
        0 => Ok(()),
        more => Err(NoAnswer::Wrong(format!(
            "expected nothing after the last answer, found {more} bytes: '{}'",
            unread[..more.min(80)].escape_ascii()
        ))),
    }
}

/// The time between two looks at the CPU time.
const TICK: Duration = Duration::from_millis(100);

/// The time that a process may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimeLimit {
    /// The time on the clock.
    Clock(Duration),
    /// The CPU time, because a machine may be busy. A process that waits for something would wait forever, so the time
    /// in which it neither uses the CPU nor prints anything is bounded, too.
    Cpu { used: Duration, idle: Duration },
}

/// The clock of a process.
pub(super) struct Clock {
    limit: TimeLimit,
    start: Instant,
    looked: Instant,
    /// The CPU time at the first look, and at the last.
    cpu: Option<(Duration, Duration)>,
    progressed: Instant,
}

impl Clock {
    pub(super) fn new(limit: TimeLimit) -> Self {
        let start = Instant::now();
        Self { limit, start, looked: start, cpu: None, progressed: start }
    }

    /// Records that the process has printed something.
    pub(super) fn progress(&mut self) {
        self.progressed = Instant::now();
    }

    /// Returns the time after which to look at the clock again.
    pub(super) fn interval(&self) -> Duration {
        match self.limit {
            TimeLimit::Clock(limit) => limit.saturating_sub(self.start.elapsed()),
            TimeLimit::Cpu { .. } => TICK,
        }
    }

    /// Reports whether the time of the process is over.
    fn is_over(&mut self, process: &Process) -> bool {
        let (limit, idle) = match self.limit {
            TimeLimit::Clock(limit) => return self.start.elapsed() >= limit,
            TimeLimit::Cpu { .. } if self.looked.elapsed() < TICK => return false,
            TimeLimit::Cpu { used, idle } => (used, idle),
        };
        self.looked = Instant::now();
        let mut spent = Duration::ZERO;
        // A system without the count has only the other limit.
        if let Some(now) = process.cpu_time() {
            let (first, last) = *self.cpu.get_or_insert((now, now));
            if now > last {
                (self.cpu, self.progressed) = (Some((first, now)), self.looked);
            }
            spent = now.saturating_sub(first);
        }
        spent >= limit || self.looked.duration_since(self.progressed) >= idle
    }
}
