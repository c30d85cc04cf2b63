//! A process that runs inputs, from the side of the process that waits for the results.

use std::io;
use std::time::Duration;

use crate::harness::ChainFiles;
use crate::processes::{Bounds, NoAnswer, PipedProcess, ProcessEnd, TimeLimit};

use super::isolated_run::{IsolatedRun, Isolation, IsolationError, Repeat};

/// The largest number of bytes of an answer, whose fingerprints may be long.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// The number of bytes of standard error that are kept. A backtrace may follow the line that has the reason.
pub(crate) const RUN_ERROR_BYTES: usize = 1 << 16;
/// The time that an idle process has to end after its standard input has closed.
const IDLE_END_LIMIT: Duration = Duration::from_secs(5);

/// A process that runs inputs. It ends with this value.
#[derive(Debug)]
pub(super) struct RunProcess(PipedProcess);

impl RunProcess {
    /// Starts a process.
    pub(super) fn start(isolation: &Isolation, repeat: Repeat) -> io::Result<Self> {
        let executable = isolation.executable.clone().with(["run-inputs"]);
        let executable = executable.with(isolation.limits.options());
        let executable = executable.with(["--target", isolation.target.name()]);
        let executable = executable.with((repeat == Repeat::Twice).then_some("--twice"));
        Ok(Self(PipedProcess::start(&executable, RUN_ERROR_BYTES)?))
    }

    /// Runs `input`, and waits until `limit` on the clock. After an end, the process runs no other input.
    pub(super) fn run(
        &mut self,
        input: &[u8],
        limit: Duration,
    ) -> Result<IsolatedRun, IsolationError> {
        let mut frame = (input.len() as u64).to_le_bytes().to_vec();
        frame.extend(input);
        let mut answer = Vec::new();
        let mut take = |bytes: &[u8]| {
            let is_line = bytes.last() == Some(&b'\n');
            answer.extend_from_slice(if is_line { bytes } else { &[] });
            Ok((answer.len(), is_line))
        };
        let time = TimeLimit::Clock(limit);
        let bounds = Bounds { time, unread_bytes: MAX_ANSWER_BYTES };
        match self.0.exchange(&frame, &mut take, bounds) {
            Ok(()) => Ok(IsolatedRun::Finished(serde_json::from_slice(&answer)?)),
            Err(NoAnswer::Ended(end)) => self.end(end),
            Err(NoAnswer::Closed) => Ok(IsolatedRun::Ended(ProcessEnd::Timeout)),
            Err(NoAnswer::Failed(error)) => Err(error.into()),
        }
    }

    /// Returns the result of the run that the process did not finish.
    fn end(&self, end: ProcessEnd) -> Result<IsolatedRun, IsolationError> {
        let errors = self.0.stderr_text();
        if end == ProcessEnd::Exit(2) {
            let line = errors.trim_end().trim_start_matches("qcowfuzz: ");
            return Err(IsolationError::Refused(line.to_string()));
        }
        end.within_limits(&errors).map(IsolatedRun::Ended).ok_or(IsolationError::Killed)
    }
}

impl Drop for RunProcess {
    fn drop(&mut self) {
        self.0.finish(IDLE_END_LIMIT);
        ChainFiles::delete_those_of(self.0.id());
    }
}
