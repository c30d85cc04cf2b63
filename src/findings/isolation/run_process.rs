//! A process that runs inputs, from the side of the process that waits for the results.

use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::isolated_run::{IsolatedRun, IsolationError};
use super::process_end::ProcessEnd;
use super::settings::{Isolation, Repeat};
use super::stderr_tail::StderrTail;
use super::wait::wait;

/// The number of bytes that are read at once. An answer is shorter, except for long fingerprints.
const ANSWER_BYTES: usize = 4096;
/// The time that an idle process has to end after its standard input has closed.
const IDLE_END_LIMIT: Duration = Duration::from_secs(5);

/// A process that runs inputs. It ends with this value.
#[derive(Debug)]
pub(super) struct RunProcess {
    child: Child,
    /// `None` when the process is to end.
    input: Option<ChildStdin>,
    output: ChildStdout,
    errors: StderrTail,
}

impl RunProcess {
    /// Starts a process.
    pub(super) fn start(isolation: &Isolation, repeat: Repeat) -> Result<Self, IsolationError> {
        let mut command = isolation.executable.command();
        command.arg("run-inputs").args(isolation.limits.options());
        command.args(["--target", isolation.target.name()]);
        command.args((repeat == Repeat::Twice).then_some("--twice"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let errors = StderrTail::read(child.stderr.take());
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.ok_or(io::ErrorKind::BrokenPipe).map_err(io::Error::from)?;
        Ok(Self { child, input, output, errors })
    }

    /// Runs `input`, and waits until `limit` on the clock. After an end, the process runs no other input.
    pub(super) fn run(
        &mut self,
        input: &[u8],
        limit: Duration,
    ) -> Result<IsolatedRun, IsolationError> {
        let end = Instant::now() + limit;
        // A process that ended before it had read the input closes its output, too.
        let _ = self.send(input);
        match self.answer(end)? {
            Some(line) => Ok(IsolatedRun::Finished(serde_json::from_slice(&line)?)),
            None => self.end(end.saturating_duration_since(Instant::now())),
        }
    }

    fn send(&mut self, input: &[u8]) -> io::Result<()> {
        let Some(pipe) = &mut self.input else { return Ok(()) };
        pipe.write_all(&(input.len() as u64).to_le_bytes())?;
        pipe.write_all(input)
    }

    /// Returns the line that the process prints, or `None` if it prints none until `end`, or closes its output.
    fn answer(&mut self, end: Instant) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let mut piece = [0; ANSWER_BYTES];
        while line.last() != Some(&b'\n') {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.output, PollFlags::IN)], timeout.as_ref()) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            match self.output.read(&mut piece)? {
                0 => return Ok(None),
                read => line.extend_from_slice(&piece[..read]),
            }
        }
        Ok(Some(line))
    }

    /// Waits until the process has ended, kills it after `limit`, and returns how it ended.
    fn end(&mut self, limit: Duration) -> Result<IsolatedRun, IsolationError> {
        let Some(status) = wait(&mut self.child, limit)? else {
            return Ok(IsolatedRun::Ended(ProcessEnd::Timeout));
        };
        let errors = self.errors.text();
        if status.code() == Some(2) {
            let line = errors.trim_end().trim_start_matches("qcowfuzz: ");
            return Err(IsolationError::Refused(line.to_string()));
        }
        let end = ProcessEnd::of(status, &errors).ok_or(IsolationError::Killed)?;
        Ok(IsolatedRun::Ended(end))
    }
}

impl Drop for RunProcess {
    fn drop(&mut self) {
        self.input = None;
        // The results are complete: how the process ends does not matter.
        let _ = wait(&mut self.child, IDLE_END_LIMIT);
    }
}
