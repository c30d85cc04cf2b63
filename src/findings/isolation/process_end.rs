//! The end of a process that did not finish its run, and its reason.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::Signal;

/// The end of a process that did not finish its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// The process ended with a signal, or with an exit code that no run has.
    Status(ExitStatus),
    /// The run exceeded the limit of CPU time, or waited without end. The limit is no part of the fingerprint.
    Timeout,
    /// An allocation failed, because the process has reached its memory limit.
    Memory,
}

/// The beginning of the line that Rust's standard library prints before it aborts the process.
const ALLOCATION_FAILED: &str = "memory allocation of ";

impl ProcessEnd {
    /// Returns the end of a process with this status, which printed `stderr` last. Returns `None` if somebody else has
    /// killed the process: the system does so when memory runs out, and no input is to blame for it.
    pub fn of(status: ExitStatus, stderr: &str) -> Option<Self> {
        let is = |signal: Signal| status.signal() == Some(signal.as_raw());
        if is(Signal::KILL) {
            return None;
        }
        Some(match status.signal() {
            Some(_) if is(Signal::XCPU) => Self::Timeout,
            Some(_) if stderr.lines().any(|line| line.starts_with(ALLOCATION_FAILED)) => {
                Self::Memory
            }
            _ => Self::Status(status),
        })
    }

    /// Returns the fingerprint of an input whose process ended in this way.
    pub fn fingerprint(&self) -> String {
        match self {
            Self::Status(status) => format!("process: end, an answer → {status}"),
            Self::Timeout => "process: end, an answer → none".to_string(),
            Self::Memory => "memory: allocation, within the limit → beyond".to_string(),
        }
    }

    /// Returns the beginning of the name of an artifact.
    pub fn prefix(&self) -> &'static str {
        match self {
            Self::Status(_) => "crash-",
            Self::Timeout => "timeout-",
            Self::Memory => "oom-",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(raw: i32, stderr: &str) -> Option<String> {
        ProcessEnd::of(ExitStatus::from_raw(raw), stderr).map(|end| end.fingerprint())
    }

    #[test]
    fn ends_have_reasons() {
        let abort = Signal::ABORT.as_raw();
        let aborted = "process: end, an answer → signal: 6 (SIGABRT)";
        assert_eq!(of(abort, "").as_deref(), Some(aborted));
        let memory = "a line\nmemory allocation of 10 bytes failed\n";
        assert_eq!(
            of(abort, memory).as_deref(),
            Some("memory: allocation, within the limit → beyond")
        );
        assert_eq!(
            of(Signal::XCPU.as_raw(), "").as_deref(),
            Some("process: end, an answer → none")
        );
        // The machine killed the process. Its output does not matter.
        assert_eq!(of(Signal::KILL.as_raw(), memory), None);
        // An exit code, although an allocation failed before.
        let code = "process: end, an answer → exit status: 101";
        assert_eq!(of(101 << 8, memory).as_deref(), Some(code));
    }
}
