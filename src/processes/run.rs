//! Runs a process to its end, and keeps all that it prints.

use std::io;
use std::time::Duration;

use super::end::ProcessEnd;
use super::executable::Executable;
use super::piped::{Bounds, NoAnswer, PipedProcess};
use super::time_limit::TimeLimit;

/// The maximum length of each output. A map of a million extents has 150 MB.
const MAX_OUTPUT_BYTES: usize = 256 << 20;

/// The end and the outputs of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How the process ended.
    pub end: ProcessEnd,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

impl Reply {
    /// Reports whether the process succeeded.
    pub fn is_success(&self) -> bool {
        self.end == ProcessEnd::Exit(0)
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

/// Runs a process without input. Stops it if it takes longer than `timeout` on the clock, or prints more than 256 MiB.
/// Returns its CPU time, too, with that of the processes for which it has waited.
///
/// # Errors
/// The process cannot be started, or the system does not pass on its outputs.
pub(crate) fn run(executable: &Executable, timeout: Duration) -> io::Result<(Reply, Duration)> {
    let mut piped = PipedProcess::start(executable, usize::MAX)?;
    piped.process.close_input();
    let bounds = Bounds { time: TimeLimit::Clock(timeout), unread_bytes: MAX_OUTPUT_BYTES };
    let end = match piped.exchange(b"", &mut |_| Ok((0, false)), bounds) {
        Err(NoAnswer::Ended(end)) => end,
        Err(NoAnswer::Failed(error)) => return Err(error),
        Err(NoAnswer::Closed) | Ok(()) => ProcessEnd::Timeout,
    };
    piped.process.stop()?;
    let PipedProcess { process, outputs, .. } = piped;
    Ok((Reply { end, stdout: outputs.stdout.bytes, stderr: outputs.stderr.bytes }, process.spent()))
}
