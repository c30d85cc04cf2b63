//! Runs inputs in other processes. If an input hangs, overflows the stack or raises a signal, only its process ends,
//! and the end is a finding.
//!
//! The caller names an executable. This module runs it as `EXECUTABLE run-inputs LIMITS --target TARGET [--twice]`, a
//! command of `qcowfuzz` that calls [`run_inputs()`]. LIMITS are the options of [`ProcessLimits`]; they hold for each
//! input. The process reads inputs from standard input, each as a frame: its length, 8 bytes, little endian, and its
//! bytes. For each input, it prints one line with a JSON object ([`FinishedRun`]). If it cannot run an input, it ends
//! with exit code 2, and standard error has one line. It ends when its standard input closes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::stdio::{dup2_stdout, stderr, stdout};
use serde::{Deserialize, Serialize};

use crate::harness::Checks;
use crate::harness::cases::implementation::{Implementation, no_observer};
use crate::harness::targets::TargetKind;
use crate::images::files::FileNames;
use crate::processes::{
    Bounds, Executable, NoAnswer, PipedProcess, ProcessEnd, ProcessLimits, RunCounter, TimeLimit,
};

use super::panics::PanicNotes;
use super::runner::{Runner, finding_of_two};

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

/// The number of times that an input runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Once.
    Once,
    /// Twice. A difference between the two runs is a finding.
    Twice,
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

impl Isolation {
    /// Runs `input` in a process of its own, twice: a difference between the two runs is a finding.
    pub fn isolated_run(&self, input: &[u8]) -> Result<IsolatedRun, IsolationError> {
        IsolatedRuns::new(self.clone(), Repeat::Twice).run(input)
    }
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

/// Writes messages to the standard output of this process, each as a line of JSON.
#[derive(Debug)]
pub struct Messages(File);

impl Messages {
    /// Takes standard output. From now on, text that the code under test prints there goes to standard error. It cannot
    /// get between the messages.
    ///
    /// # Errors
    /// The system has no file descriptor left, or the process has no standard output.
    pub fn take_stdout() -> io::Result<Self> {
        // Processes that the code under test starts must not hold the pipe open.
        let output = fcntl_dupfd_cloexec(stdout(), 0)?;
        dup2_stdout(stderr())?;
        Ok(Self(output.into()))
    }

    /// Writes a message.
    pub fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        (&self.0).write_all(&line)
    }
}

/// Runs the inputs of `target` that come on standard input, with `implementation` under test, and prints a line for
/// each. `counter` counts them, for the limit of CPU time. The process ends when standard input closes.
pub fn run_inputs(
    implementation: &Implementation,
    target: TargetKind,
    repeat: Repeat,
    counter: &RunCounter,
) -> io::Result<()> {
    let messages = Messages::take_stdout()?;
    let _silence = PanicNotes::take_over();
    let runner = || Runner::new(implementation, target, FileNames::default(), no_observer());
    let (mut runner, mut again) = (runner(), (repeat == Repeat::Twice).then(runner));
    for input in inputs() {
        counter.begin_run();
        let first = runner.run(&input, Checks::default());
        let second = again.as_mut().map(|again| again.run(&input, Checks::default()));
        let second = second.as_ref().unwrap_or(&first);
        let ran = FinishedRun {
            fingerprint: finding_of_two(&first, second).map(|finding| finding.fingerprint),
            known: runner.met().iter().map(|met| met.known.clone()).collect(),
            drawn: first.is_drawn() && first == *second,
        };
        messages.send(&ran)?;
    }
    Ok(())
}

/// Returns the inputs of standard input. When it closes, this process ends at once: the process that waits for the
/// results has ended, or needs no more.
fn inputs() -> Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut from = io::stdin().lock();
        while let Ok(input) = frame(&mut from)
            && send.send(input).is_ok()
        {}
        std::process::exit(0);
    });
    receive
}

/// Reads a length and as many bytes.
fn frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let (length, mut input) = (u64::from_le_bytes(length), Vec::new());
    match from.take(length).read_to_end(&mut input)? as u64 == length {
        true => Ok(input),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The largest number of bytes of an answer, whose fingerprints may be long.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// The number of bytes of standard error that are kept. A backtrace may follow the line that has the reason.
pub(crate) const RUN_ERROR_BYTES: usize = 1 << 16;
/// The time that an idle process has to end after its standard input has closed.
const IDLE_END_LIMIT: Duration = Duration::from_secs(5);

/// A process that runs inputs. It ends with this value.
#[derive(Debug)]
struct RunProcess(PipedProcess);

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
        let bounds = Bounds { time, unread_bytes: MAX_ANSWER_BYTES, stored_bytes: u64::MAX };
        match self.0.exchange(&frame, &mut take, bounds) {
            Ok(()) => Ok(IsolatedRun::Finished(serde_json::from_slice(&answer)?)),
            Err(NoAnswer::Ended(end)) => self.end(end),
            Err(NoAnswer::Closed) => Ok(IsolatedRun::Ended(ProcessEnd::Timeout)),
            Err(NoAnswer::Wrong(what)) => Err(io::Error::other(what).into()),
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
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::ffi::OsString;
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    /// Returns an isolation that runs `script` with a shell for each input. `$input` is a file with the input. The
    /// script prints one line.
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

    /// Set in the process that the test starts.
    const PRINTS: &str = "QCOWFUZZ_TEST_PRINTS";

    #[test]
    fn what_the_code_under_test_prints_is_no_message() {
        if std::env::var_os(PRINTS).is_some() {
            let messages = Messages::take_stdout().unwrap();
            print!("noise without an end of the line");
            messages.send(&["a message"]).unwrap();
            println!("noise");
            std::process::exit(0);
        }
        let name = "findings::isolation::tests::what_the_code_under_test_prints_is_no_message";
        let mut test = Command::new(std::env::current_exe().unwrap());
        let ran = test.args(["--exact", name, "--nocapture"]).env(PRINTS, "1").output().unwrap();
        let [out, errors] = [&ran.stdout, &ran.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        assert!(out.ends_with("\n[\"a message\"]\n") && !out.contains("noise"), "{out}");
        assert!(errors.contains("noise without"), "{errors}");
    }
}
