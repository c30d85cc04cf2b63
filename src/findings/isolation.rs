//! Runs inputs in separate processes. If an input hangs, overflows the stack or raises a signal, only its process ends,
//! and the end is a finding.
//!
//! The caller names an executable. This module runs it as `EXECUTABLE replay --json --brief --supervised LIMITS
//! --target TARGET -- FILE`, which is a command of `qcowfuzz`. LIMITS are the options of [`ProcessLimits`]. It runs
//! the input in FILE and prints one JSON object. If there is a finding, the key `fingerprint` has its fingerprint;
//! `known` lists the fingerprints of known findings. The exit code is 0 or 1 if the input ran. Otherwise, it is 2, and
//! standard error has one line. The process ends when its standard input closes ([`end_with_input`]).

mod process_end;
mod process_limits;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tempfile::NamedTempFile;

use crate::harness::ChainFiles;
use crate::harness::targets::TargetKind;

pub use process_end::ProcessEnd;
pub(crate) use process_limits::{CPU_OPTION, MEMORY_OPTION};
pub use process_limits::{ProcessLimits, RunCounter};

/// The time between two checks whether a process has ended.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// An executable that runs inputs, or jobs of a campaign.
#[derive(Clone, Debug)]
pub struct Executable {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Executable {
    /// Returns the executable at `path`. Every call passes `arguments` first.
    pub fn new(path: impl Into<PathBuf>, arguments: impl IntoIterator<Item = OsString>) -> Self {
        Self { path: path.into(), arguments: arguments.into_iter().collect() }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a command that calls the executable.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        command
    }
}

/// The reason why an input did not run.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// The input could not be written to a temporary file.
    #[error("a temporary file: {0}")]
    Scratch(io::Error),
    /// The input or the process failed.
    #[error("{path}: {source}", path = path.display())]
    Process {
        /// The input.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The executable printed something other than the expected JSON object.
    #[error("{path}: {source}", path = path.display())]
    Answer {
        /// The input.
        path: PathBuf,
        /// The difference.
        source: serde_json::Error,
    },
    /// The executable could not run the input, and printed this line.
    #[error("{0}")]
    Refused(String),
    /// Somebody else killed the process. The system does so when memory runs out.
    #[error("{path}: the system killed its process, expected more free memory", path = path.display())]
    Killed {
        /// The input.
        path: PathBuf,
    },
}

/// The result of a run in a separate process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IsolatedRun {
    /// The process finished its run.
    Finished {
        /// The fingerprint of the finding, if there is one.
        fingerprint: Option<String>,
        /// The fingerprints of known findings that the run met.
        known: Vec<String>,
    },
    /// The input ended its process, or the process exceeded the time limit.
    Ended(ProcessEnd),
}

impl IsolatedRun {
    /// Returns the fingerprint of the finding, if there is one.
    pub fn fingerprint(&self) -> Option<String> {
        match self {
            Self::Finished { fingerprint, .. } => fingerprint.clone(),
            Self::Ended(end) => Some(end.fingerprint()),
        }
    }
}

/// The part of the JSON object that this module reads.
#[derive(Deserialize)]
struct PrintedFingerprint {
    fingerprint: Option<String>,
    #[serde(default)]
    known: Vec<String>,
}

/// Runs inputs of a target, each in a separate process.
#[derive(Clone, Debug)]
pub struct Isolation {
    /// The executable that runs the inputs.
    pub executable: Executable,
    /// The target of the inputs.
    pub target: TargetKind,
    /// The limits of each process.
    pub limits: ProcessLimits,
}

impl Isolation {
    /// Runs `input`.
    ///
    /// # Errors
    /// The input could not be run.
    pub fn isolated_run(&self, input: &[u8]) -> Result<IsolatedRun, IsolationError> {
        let file = NamedTempFile::with_prefix("qcowfuzz-").and_then(|mut file| {
            file.write_all(input)?;
            Ok(file.into_temp_path())
        });
        self.isolated_run_of(&file.map_err(IsolationError::Scratch)?)
    }

    /// Runs the input in the file at `path`.
    ///
    /// # Errors
    /// The input could not be run.
    pub fn isolated_run_of(&self, path: &Path) -> Result<IsolatedRun, IsolationError> {
        let failed = |source| IsolationError::Process { path: path.to_path_buf(), source };
        let mut command = self.executable.command();
        command
            .args(["replay", "--json", "--brief", "--supervised"])
            .args(self.limits.options())
            .args(["--target", self.target.name(), "--"])
            .arg(path);
        // Both outputs go to files, because a process would stop at a full pipe. The standard input of the process
        // closes when this process ends, and then the process ends too.
        let [mut out, mut error] =
            [tempfile::tempfile().map_err(failed)?, tempfile::tempfile().map_err(failed)?];
        command.stdin(Stdio::piped());
        command.stdout(out.try_clone().map_err(failed)?);
        command.stderr(error.try_clone().map_err(failed)?);
        let mut child = command.spawn().map_err(failed)?;
        let Some(status) = wait(&mut child, self.limits.wall_clock()).map_err(failed)? else {
            return Ok(IsolatedRun::Ended(ProcessEnd::Timeout));
        };
        match status.code() {
            Some(0 | 1) => {
                let out = text(&mut out).map_err(failed)?;
                let PrintedFingerprint { fingerprint, known } = serde_json::from_str(&out)
                    .map_err(|source| IsolationError::Answer {
                        path: path.to_path_buf(),
                        source,
                    })?;
                Ok(IsolatedRun::Finished { fingerprint, known })
            }
            Some(2) => {
                let line = text(&mut error).map_err(failed)?;
                let line = line.trim_end().trim_start_matches("qcowfuzz: ");
                Err(IsolationError::Refused(line.to_string()))
            }
            _ => {
                let stderr = text(&mut error).map_err(failed)?;
                let end = ProcessEnd::of(status, &stderr);
                end.map(IsolatedRun::Ended)
                    .ok_or_else(|| IsolationError::Killed { path: path.to_path_buf() })
            }
        }
    }
}

/// Returns the content of a file as text.
fn text(file: &mut File) -> io::Result<String> {
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Ends this process with exit code 2 when its standard input ends: the process that started it has ended.
pub fn end_with_input() {
    std::thread::spawn(|| {
        let mut byte = [0];
        while matches!(io::stdin().lock().read(&mut byte), Ok(1..)) {}
        std::process::exit(2);
    });
}

/// Waits for a process. Kills it if it does not end in time, and returns `None`. Deletes the files that a killed
/// process leaves behind.
///
/// # Errors
/// The system cannot wait for the process, or kill it.
pub(crate) fn wait(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > timeout {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(END_CHECK_INTERVAL);
    };
    if status.and_then(|status| status.code()).is_none() {
        ChainFiles::delete_those_of(child.id());
    }
    Ok(status)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns an isolation that runs `script` with a shell. `$input` is the file with the input.
    pub(crate) fn shell(script: &str) -> Isolation {
        let script = format!("for input in \"$@\"; do :; done; {script}");
        let arguments = ["-c", &script].map(OsString::from);
        let executable = Executable::new("/bin/sh", arguments);
        let limits = ProcessLimits { cpu_time: Duration::from_secs(20), memory_mib: 0 };
        Isolation { executable, target: TargetKind::Hostile, limits }
    }

    fn run(script: &str) -> Result<IsolatedRun, String> {
        shell(script).isolated_run(b"an input").map_err(|error| error.to_string())
    }

    #[test]
    fn answers_are_read_and_ends_are_named() {
        let finished = |fingerprint: Option<&str>| {
            let fingerprint = fingerprint.map(str::to_string);
            Ok(IsolatedRun::Finished { fingerprint, known: Vec::new() })
        };
        assert_eq!(run("echo '{\"verdict\":\"ok\"}'"), finished(None));
        let found = r#"echo '{"fingerprint":"model: kind, a → b"}'; exit 1"#;
        assert_eq!(run(found), finished(Some("model: kind, a → b")));
        // The script prints the documented arguments and the content of the file.
        let arguments = r#"printf '{"fingerprint":"%s"}' "$0 $1 $2 $3 $4 $5 $6 $7 $8 $9 ${10} $(cat "$input")""#;
        let limits = "--cpu-milliseconds 20000 --memory-mib 0";
        let passed =
            &*format!("replay --json --brief --supervised {limits} --target hostile -- an input");
        assert_eq!(run(arguments), finished(Some(passed)));
        let fingerprint = |script: &str| run(script).map(|ran| ran.fingerprint());
        let signal = "process: end, an answer → signal: 11 (SIGSEGV)";
        assert_eq!(fingerprint("ulimit -c 0; kill -SEGV $$"), Ok(Some(signal.to_string())));
        let code = "process: end, an answer → exit status: 101";
        assert_eq!(fingerprint("exit 101"), Ok(Some(code.to_string())));
    }

    #[test]
    fn what_cannot_be_run_is_an_error_and_no_finding() {
        let refused = run("echo 'qcowfuzz: input: too long' >&2; exit 2");
        assert_eq!(refused, Err("input: too long".to_string()));
        assert!(run("echo nothing").unwrap_err().contains("expected ident"));
        let missing =
            Isolation { executable: Executable::new("/no/such/executable", []), ..shell("") };
        let error = missing.isolated_run(b"").unwrap_err();
        assert!(matches!(error, IsolationError::Process { .. }), "{error}");
        // The input is not to blame when the system kills its process.
        assert!(run("kill -9 $$").unwrap_err().contains("the system killed its process"));
    }

    #[test]
    fn a_process_that_hangs_is_ended() {
        let start = Instant::now();
        let limits = ProcessLimits { cpu_time: Duration::from_millis(5), memory_mib: 0 };
        let hangs = Isolation { limits, ..shell("exec sleep 1000") }.isolated_run(b"");
        assert_eq!(hangs.unwrap(), IsolatedRun::Ended(ProcessEnd::Timeout));
        assert!(start.elapsed() < Duration::from_secs(100));
    }
}
