//! The process of a command: sends questions, reads answers, and judges silence and ends.
//!
//! The CPU time of the process counts, because a machine may be busy. Time without progress of that count is bounded,
//! too: a process that waits for something would wait forever.
//!
//! # Arithmetic
//! A count that would be negative is 0, and a piece that is not there is empty.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process_group};
use smallvec::SmallVec;

use crate::harness::engine::EngineEnd;

/// A part of the shell's line: when the process that asks has ended, it ends this process and all that it has started.
/// If the former is killed, no destructor runs, and a process that computes does not notice the end of its input. The
/// watch is no child of the process, and holds none of its pipes.
const WATCH: &str =
    "({ while kill -0 $PPID; do sleep 1; done; kill -KILL 0; } </dev/null >/dev/null 2>&1 &)";
/// The address space of the process, unless the command raises the limit by `ulimit`.
const MAX_MEMORY_KIB: u64 = 2 << 20;
/// The CPU time for the answers about one image.
const CPU_LIMIT: Duration = Duration::from_secs(5);
/// The time in which the process does not use the CPU, before an answer.
const IDLE_LIMIT: Duration = Duration::from_secs(10);
/// The time between two looks at the clocks.
const TICK: Duration = Duration::from_millis(100);
/// The time that a process has to end after it has closed its output.
const END_LIMIT: Duration = Duration::from_secs(2);
/// The number of bytes of standard error that are kept.
const KEPT_ERROR_BYTES: usize = 2048;
/// The number of its lines that a finding shows.
const KEPT_ERROR_LINES: usize = 10;
/// The largest number of bytes of the answers about one image.
const MAX_UNREAD_BYTES: usize = 1 << 30;
/// The number of bytes that are read at once, the size of a pipe.
const PIPE_BYTES: usize = 64 << 10;

/// The words in which allocators and languages report that no memory is left.
const OUT_OF_MEMORY: [&str; 5] =
    ["memory allocation of ", "MemoryError", "bad_alloc", "out of memory", "annot allocate memory"];

/// The reason why there are no answers.
#[derive(Debug)]
pub(super) enum Silence {
    /// The process ended, or the harness ended it because it was silent.
    Ended(EngineEnd),
    /// The process wrote something else, or the system refused something. The line is for the user.
    Failed(String),
}

impl From<io::Error> for Silence {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A process, which is killed with this value.
#[derive(Debug)]
pub(super) struct EngineProcess {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    errors: ChildStderr,
    /// The bytes of standard output that are no part of an answer yet.
    pub(super) unread: Vec<u8>,
    /// The last bytes of standard error.
    error_tail: Vec<u8>,
    has_closed_errors: bool,
    /// The bytes of one read of a pipe.
    piece: Vec<u8>,
}

/// The clocks of one exchange.
struct Clocks {
    looked: Instant,
    /// The CPU time at the first look, and at the last.
    cpu: Option<(Duration, Duration)>,
    progressed: Instant,
}

/// Takes answers from bytes. Returns the number of bytes that it takes, and whether it needs no more.
pub(super) type TakeAnswers<'t> = dyn FnMut(&[u8]) -> Result<(usize, bool), String> + 't;

impl EngineProcess {
    /// Starts `command` with a shell, in a folder if there is one.
    pub(super) fn start(command: &str, folder: Option<&Path>) -> Result<Self, Silence> {
        // The shell becomes the command, so that its CPU time and its end are those of the command.
        let line = format!("{WATCH}; ulimit -S -v {MAX_MEMORY_KIB} || exit 2; eval \"exec $0\"");
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(line).arg(command).process_group(0);
        if let Some(folder) = folder {
            shell.current_dir(folder);
        }
        // A backtrace would push the message of a panic out of the lines that are kept.
        shell.env("RUST_BACKTRACE", "0");
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = pipes else {
            return Err(Silence::Failed("the process has no pipes".to_string()));
        };
        for pipe in [input.as_fd(), output.as_fd(), errors.as_fd()] {
            let flags = fcntl_getfl(pipe).map_err(io::Error::from)?;
            fcntl_setfl(pipe, flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
        }
        let (unread, error_tail) = Default::default();
        let (has_closed_errors, piece) = (false, vec![0; PIPE_BYTES]);
        Ok(Self { child, input, output, errors, unread, error_tail, has_closed_errors, piece })
    }

    /// Writes `questions`, and reads until `take` has all answers. `take` gets all bytes that it has not taken, and
    /// returns the number of bytes that it takes, and whether it needs no more.
    pub(super) fn exchange(
        &mut self,
        questions: &[u8],
        take: &mut TakeAnswers<'_>,
    ) -> Result<(), Silence> {
        let mut piece = std::mem::take(&mut self.piece);
        let exchanged = self.exchange_pieces(questions, take, &mut piece);
        self.piece = piece;
        exchanged
    }

    fn exchange_pieces(
        &mut self,
        questions: &[u8],
        take: &mut TakeAnswers<'_>,
        piece: &mut [u8],
    ) -> Result<(), Silence> {
        let mut unsent = questions;
        let now = Instant::now();
        let mut clocks = Clocks { looked: now, cpu: None, progressed: now };
        loop {
            let (taken, is_complete) = take(&self.unread).map_err(Silence::Failed)?;
            self.unread.drain(..taken);
            if is_complete && unsent.is_empty() {
                return match self.unread.len() {
                    0 => Ok(()),
                    more => Err(Silence::Failed(format!(
                        "expected nothing after the last answer, found {more} bytes: '{}'",
                        self.unread[..more.min(80)].escape_ascii()
                    ))),
                };
            }
            if self.unread.len() > MAX_UNREAD_BYTES {
                let what = format!("expected answers of at most {MAX_UNREAD_BYTES} bytes");
                return Err(Silence::Failed(what));
            }
            if !self.wait(!unsent.is_empty())? && !self.is_in_time(&mut clocks) {
                return Err(Silence::Ended(self.kill()));
            }
            self.read_errors(piece);
            match if unsent.is_empty() { Ok(0) } else { self.input.write(unsent) } {
                Ok(written) => unsent = unsent.get(written..).unwrap_or_default(),
                Err(error) if is_transient(&error) => {}
                Err(_) => return Err(self.ended()?),
            }
            match self.output.read(piece) {
                Ok(0) => return Err(self.ended()?),
                Ok(read) => {
                    self.unread.extend_from_slice(&piece[..read]);
                    clocks.progressed = Instant::now();
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error.into()),
            }
            if clocks.looked.elapsed() > TICK && !self.is_in_time(&mut clocks) {
                return Err(Silence::Ended(self.kill()));
            }
        }
    }

    /// Waits until a pipe is ready, for a while. Returns whether one is.
    fn wait(&self, has_unsent: bool) -> io::Result<bool> {
        let mut pipes = SmallVec::<[_; 3]>::new();
        pipes.push(PollFd::new(&self.output, PollFlags::IN));
        // The end of a pipe would be ready forever.
        if !self.has_closed_errors {
            pipes.push(PollFd::new(&self.errors, PollFlags::IN));
        }
        if has_unsent {
            pipes.push(PollFd::new(&self.input, PollFlags::OUT));
        }
        let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        match poll(&mut pipes, Some(&tick)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Looks at the clocks. Returns false if the process has had its time.
    fn is_in_time(&self, clocks: &mut Clocks) -> bool {
        let now = Instant::now();
        clocks.looked = now;
        let Some(used) = self.cpu_time() else {
            // A system without the count: only the other limit holds.
            return now.duration_since(clocks.progressed) < IDLE_LIMIT;
        };
        let (first, last) = *clocks.cpu.get_or_insert((used, used));
        if used > last {
            (clocks.cpu, clocks.progressed) = (Some((first, used)), now);
        }
        used.saturating_sub(first) < CPU_LIMIT && now.duration_since(clocks.progressed) < IDLE_LIMIT
    }

    /// Returns the CPU time of the process, as Linux reports it.
    fn cpu_time(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        // The name of the executable, which may contain anything, is in brackets.
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut times = fields.split(' ').skip(11).map(|field| field.parse::<u64>().ok());
        let ticks = times.next()??.checked_add(times.next()??)?;
        let in_second = rustix::param::clock_ticks_per_second();
        Some(Duration::from_millis(ticks.checked_mul(1000)?.checked_div(in_second)?))
    }

    fn read_errors(&mut self, piece: &mut [u8]) {
        while !self.has_closed_errors {
            match self.errors.read(piece) {
                Ok(0) => self.has_closed_errors = true,
                Ok(read) => {
                    self.error_tail.extend_from_slice(&piece[..read]);
                    let surplus = self.error_tail.len().saturating_sub(KEPT_ERROR_BYTES);
                    self.error_tail.drain(..surplus);
                    return;
                }
                Err(_) => return,
            }
        }
    }

    /// Returns the end of a process that has closed a pipe. One that lives on does not speak the protocol.
    fn ended(&mut self) -> Result<Silence, Silence> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Silence::Ended(self.end(status_name(status))));
            }
            if start.elapsed() > END_LIMIT {
                let what =
                    "expected an answer, but the command has closed its standard input or output";
                return Err(Silence::Failed(what.to_string()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends a process that is silent.
    fn kill(&mut self) -> EngineEnd {
        self.kill_group();
        self.end("none")
    }

    fn end(&mut self, status: &'static str) -> EngineEnd {
        let mut piece = vec![0; PIPE_BYTES];
        self.read_errors(&mut piece);
        let text = String::from_utf8_lossy(&self.error_tail);
        let is_out_of_memory = OUT_OF_MEMORY.iter().any(|words| text.contains(words));
        let mut lines: Vec<_> = text.trim_end().lines().rev().take(KEPT_ERROR_LINES).collect();
        lines.reverse();
        EngineEnd { status, is_out_of_memory, detail: lines.join("\n") }
    }

    fn kill_group(&mut self) {
        // Each fails if the process has ended already. The shell may have started others.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        self.kill_group();
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Returns the name of an end: `signal: 6 (SIGABRT)`, `exit status: 1`. There is one for each signal and each code.
fn status_name(status: ExitStatus) -> &'static str {
    static CODES: [OnceLock<String>; 256] = [const { OnceLock::new() }; 256];
    static SIGNALS: [OnceLock<String>; 128] = [const { OnceLock::new() }; 128];
    let (names, number) = match status.signal() {
        Some(signal) => (&SIGNALS[..], signal),
        None => (&CODES[..], status.code().unwrap_or_default()),
    };
    let name = usize::try_from(number).ok().and_then(|number| names.get(number));
    // Not every machine keeps a core file.
    let named = || status.to_string().replace(" (core dumped)", "");
    name.map_or("another end", |name| name.get_or_init(named))
}
