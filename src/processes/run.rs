//! Runs a process to its end, and keeps all that it prints. Ends the processes that outlive a killed campaign.
//!
//! QEMU does not notice the kill, and may still write to the folder of the campaign. The next campaign ends these
//! processes before it removes the folder. The environment of each process of a campaign names the folder in which it
//! started. So the next campaign does not end a user's shell in that folder.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::end::ProcessEnd;
use super::piped::{Bounds, NoAnswer, PipedProcess, TimeLimit};
use super::process::Executable;

/// The maximum length of each output. A map of a million extents has 150 MB.
const MAX_OUTPUT_BYTES: usize = 256 << 20;

/// The end and the outputs of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// How the process ended.
    pub end: ProcessEnd,
    /// Its standard output.
    #[serde(with = "hex")]
    pub stdout: Vec<u8>,
    /// Its standard error.
    #[serde(with = "hex")]
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
///
/// # Errors
/// The process cannot be started, or the system does not pass on its outputs.
pub(crate) fn run(executable: &Executable, timeout: Duration) -> io::Result<Reply> {
    let mut piped = PipedProcess::start(executable, usize::MAX)?;
    piped.process.close_input();
    let bounds = Bounds {
        time: TimeLimit::Clock(timeout),
        unread_bytes: MAX_OUTPUT_BYTES,
        stored_bytes: u64::MAX,
    };
    let end = match piped.exchange(b"", &mut |_| Ok((0, false)), bounds) {
        Err(NoAnswer::Ended(end)) => end,
        Err(NoAnswer::Failed(error)) => return Err(error),
        // Nothing that it prints is wrong.
        Err(NoAnswer::Wrong(_) | NoAnswer::Closed) | Ok(()) => ProcessEnd::Timeout,
    };
    piped.process.stop()?;
    let PipedProcess { outputs, .. } = piped;
    Ok(Reply { end, stdout: outputs.stdout.bytes, stderr: outputs.stderr.bytes })
}

/// The variable that names the folder in which a process started.
pub(crate) const MARK: &str = "QCOWFUZZ_DIFFERENTIAL_FOLDER";

/// Ends the processes that a campaign has started below a folder, and waits until they are gone. Where the system has
/// no `/proc`, they end by themselves.
pub(crate) fn end_below(folder: &Path) {
    #[cfg(target_os = "linux")]
    linux::end_below(folder);
    #[cfg(not(target_os = "linux"))]
    let _ = folder;
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    use super::MARK;

    /// The longest time for which the next campaign waits.
    const MAX_WAIT: Duration = Duration::from_secs(20);
    /// The time between two looks.
    const LOOK_INTERVAL: Duration = Duration::from_millis(5);

    pub(super) fn end_below(folder: &Path) {
        let deadline = Instant::now().checked_add(MAX_WAIT);
        while end_once(folder) && deadline.is_some_and(|at| Instant::now() < at) {
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Sends a signal to each process. Returns false if there was none.
    fn end_once(folder: &Path) -> bool {
        let Ok(processes) = std::fs::read_dir("/proc") else { return false };
        let mut has_any = false;
        for process in processes.flatten() {
            let name = process.file_name();
            let number = name.to_str().and_then(|name| name.parse().ok());
            let Some(pid) = number.and_then(Pid::from_raw) else { continue };
            if !is_below(&process.path(), folder) {
                continue;
            }
            // Another process may have got the number. It is open now, so a second look is about the same process.
            let Ok(open) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            if is_below(&process.path(), folder) {
                has_any = true;
                // A process that has ended meanwhile needs no signal.
                let _ = pidfd_send_signal(&open, Signal::KILL);
            }
        }
        has_any
    }

    /// Reports whether the environment of a process has the mark with this folder, or one below it. The environment of
    /// a process that has ended is empty.
    fn is_below(process: &Path, folder: &Path) -> bool {
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| {
            let value = variable.strip_prefix(MARK.as_bytes());
            let value = value.and_then(|rest| rest.strip_prefix(b"="));
            value.is_some_and(|value| Path::new(OsStr::from_bytes(value)).starts_with(folder))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    #[cfg_attr(not(target_os = "linux"), ignore = "processes end by themselves")]
    fn only_processes_with_the_mark_end() {
        let dir = tempfile::tempdir().unwrap();
        let sleeper = |mark: Option<&Path>| {
            let mut command = Command::new("sleep");
            command.arg("100").current_dir(dir.path()).env_remove(MARK);
            command.envs(mark.map(|folder| (MARK, folder)));
            command.spawn().unwrap()
        };
        let mut ours = sleeper(Some(&dir.path().join("job-0")));
        let mut others = [sleeper(None), sleeper(Some(&dir.path().with_extension("other")))];
        end_below(dir.path());
        assert_eq!(ours.try_wait().unwrap().and_then(|status| status.signal()), Some(9));
        for other in &mut others {
            assert!(other.try_wait().unwrap().is_none());
            other.kill().unwrap();
            other.wait().unwrap();
        }
    }
}
