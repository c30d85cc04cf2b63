//! Runs inputs in other processes. If an input hangs, overflows the stack or raises a signal, only its process ends, and
//! the end is a finding.
//!
//! The caller names an executable. This module runs it as `EXECUTABLE run-inputs LIMITS --target TARGET [--twice]`, a
//! command of `qcowfuzz` that calls [`run_inputs`]. LIMITS are the options of [`ProcessLimits`]; they hold for each
//! input. The process reads inputs from standard input, each as a frame: its length, 8 bytes, little endian, and its
//! bytes. For each, it prints one line with a JSON object ([`FinishedRun`]). If it cannot run an input, it ends with exit
//! code 2, and standard error has one line. It ends when its standard input closes.

mod messages;
mod process_end;
mod process_limits;
mod run_inputs;
mod run_process;
mod stderr_tail;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::harness::ChainFiles;
use crate::harness::targets::TargetKind;

pub use messages::Messages;
pub use process_end::ProcessEnd;
pub(crate) use process_limits::{CPU_OPTION, MEMORY_OPTION};
pub use process_limits::{ProcessLimits, RunCounter};
pub use run_inputs::run_inputs;
use run_process::RunProcess;
pub(crate) use stderr_tail::StderrTail;

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
    /// The process could not be started, or its output could not be read.
    #[error("a process for inputs: {0}")]
    Process(#[from] io::Error),
    /// The executable printed something other than the expected JSON object.
    #[error("the answer of a process for inputs: {0}")]
    Answer(#[from] serde_json::Error),
    /// The executable could not run the input, and printed this line.
    #[error("{0}")]
    Refused(String),
    /// Somebody else killed the process. The system does so when memory runs out.
    #[error("the system killed the process of the input, expected more free memory")]
    Killed,
}

/// The result of a run in another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IsolatedRun {
    /// The process finished its run.
    Finished(FinishedRun),
    /// The input ended its process, or the process exceeded the time limit.
    Ended(ProcessEnd),
}

/// The result of a run that its process finished.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FinishedRun {
    /// The fingerprint of the finding, if there is one.
    pub fingerprint: Option<String>,
    /// The fingerprints of known findings that the run met.
    pub known: Vec<String>,
    /// True if the oracle with the finding draws its questions from the checksum of the input.
    pub drawn: bool,
}

impl IsolatedRun {
    /// Returns the fingerprint of the finding, if there is one.
    pub fn fingerprint(&self) -> Option<String> {
        match self {
            Self::Finished(run) => run.fingerprint.clone(),
            Self::Ended(end) => Some(end.fingerprint()),
        }
    }
}

/// How inputs are run in other processes.
#[derive(Clone, Debug)]
pub struct Isolation {
    /// The executable that runs the inputs.
    pub executable: Executable,
    /// The target of the inputs.
    pub target: TargetKind,
    /// The limits of each run.
    pub limits: ProcessLimits,
}

impl Isolation {
    /// Runs `input` in a process of its own, twice: a difference between the two runs is a finding.
    ///
    /// # Errors
    /// The input could not be run.
    pub fn isolated_run(&self, input: &[u8]) -> Result<IsolatedRun, IsolationError> {
        IsolatedRuns::new(self.clone(), Repeat::Twice).run(input)
    }
}

/// How often an input is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Once.
    Once,
    /// Twice. A difference between the two runs is a finding.
    Twice,
}

/// Runs inputs in a process, which it starts again when an input ends it.
#[derive(Debug)]
pub struct IsolatedRuns {
    isolation: Isolation,
    repeat: Repeat,
    process: Option<RunProcess>,
}

impl IsolatedRuns {
    /// Creates the runs. The process starts with the first input.
    pub fn new(isolation: Isolation, repeat: Repeat) -> Self {
        Self { isolation, repeat, process: None }
    }

    /// Runs `input`. An end of the process counts only if a new process ends too: the inputs before may have left
    /// something behind, such as memory that is never freed.
    ///
    /// # Errors
    /// The input could not be run.
    pub fn run(&mut self, input: &[u8]) -> Result<IsolatedRun, IsolationError> {
        let is_new = self.process.is_none();
        match self.run_in_process(input)? {
            IsolatedRun::Ended(_) if !is_new => self.run_in_process(input),
            ran => Ok(ran),
        }
    }

    fn run_in_process(&mut self, input: &[u8]) -> Result<IsolatedRun, IsolationError> {
        let mut process = match self.process.take() {
            Some(process) => process,
            None => RunProcess::start(&self.isolation, self.repeat)?,
        };
        let ran = process.run(input, self.isolation.limits.wall_clock())?;
        if let IsolatedRun::Finished(_) = ran {
            self.process = Some(process);
        }
        Ok(ran)
    }
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

    /// Returns an isolation that runs `script` with a shell for each input. `$input` is a file with the input. The script
    /// prints one line.
    pub(crate) fn shell(script: &str) -> Isolation {
        let script = format!(
            r#"name=$(mktemp); exec 3<>"$name"; rm "$name"; input=/proc/$$/fd/3
            while length=$(head -c 8 | od -An -tu8) && test -n "$length"; do
                head -c $length >"$input"
                {script}
            done"#
        );
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
            Ok(IsolatedRun::Finished(FinishedRun { fingerprint, ..FinishedRun::default() }))
        };
        assert_eq!(run("echo '{\"verdict\":\"ok\"}'"), finished(None));
        let found = r#"echo '{"fingerprint":"model: kind, a → b"}'"#;
        assert_eq!(run(found), finished(Some("model: kind, a → b")));
        // The script prints the documented arguments and the content of the file.
        let arguments = r#"printf '{"fingerprint":"%s"}\n' "$0 $* $(cat "$input")""#;
        let limits = "--cpu-milliseconds 20000 --memory-mib 0";
        let passed = &*format!("run-inputs {limits} --target hostile --twice an input");
        assert_eq!(run(arguments), finished(Some(passed)));
        let fingerprint = |script: &str| run(script).map(|ran| ran.fingerprint());
        let signal = "process: end, an answer → signal: 11 (SIGSEGV)";
        assert_eq!(fingerprint("ulimit -c 0; kill -SEGV $$"), Ok(Some(signal.to_string())));
        // Code under test may end the process itself, and call that a success.
        for code in [0, 1, 101] {
            let end = format!("process: end, an answer → exit status: {code}");
            assert_eq!(fingerprint(&format!("exit {code}")), Ok(Some(end)));
        }
    }

    #[test]
    fn a_process_runs_inputs_until_one_ends_it() {
        // Each process counts its inputs, and survives two. No process survives the last one.
        let script = r#"n=$((n + 1)); grep -q bad "$input" && exit 3; test $n -lt 3 || exit 4
            echo "{\"fingerprint\":\"$n\"}""#;
        let mut runs = IsolatedRuns::new(shell(script), Repeat::Once);
        let shown = [&b"a"[..], b"b", b"c", b"d", b"bad", b"e"]
            .map(|input| runs.run(input).unwrap().fingerprint().unwrap());
        let end = "process: end, an answer → exit status: 3";
        assert_eq!(shown, ["1", "2", "1", "2", end, "1"]);
    }

    #[test]
    fn what_cannot_be_run_is_an_error_and_no_finding() {
        let refused = run("echo 'qcowfuzz: input: too long' >&2; exit 2");
        assert_eq!(refused, Err("input: too long".to_string()));
        assert!(run("echo nothing").unwrap_err().contains("expected ident"));
        let missing =
            Isolation { executable: Executable::new("/no/such/executable", []), ..shell("") };
        let error = missing.isolated_run(b"").unwrap_err();
        assert!(matches!(error, IsolationError::Process(_)), "{error}");
        // The input is not to blame when the system kills its process.
        assert!(run("kill -9 $$").unwrap_err().contains("the system killed the process"));
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
