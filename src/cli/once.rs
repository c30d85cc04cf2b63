//! Runs an input in a process of its own: one that a hang, a stack overflow or a signal may end.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tempfile::TempDir;

use qcowfuzz::fuzzing::corpus;

use super::exit::Failure;
use qcowfuzz::harness::targets::TargetKind;

/// How often a process is looked at that does not end.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// What an input came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// What was found, if anything.
    pub fingerprint: Option<String>,
    /// The process did not come to its own end.
    pub ended: bool,
    /// How long the input is.
    pub bytes: u64,
}

/// The fingerprint of an input whose process came to this end.
pub fn ended_by(end: &str) -> String {
    format!("process: end, an answer → {end}")
}

/// The end of a process that came to none in time. How long that is, is no matter of the bug.
pub const NEVER: &str = "none";

/// Refuses an input that ends its process, for the sake of a command that would end with it. `path` is where the
/// `input` came from.
pub fn survived(path: &Path, input: &[u8], target: TargetKind) -> Result<(), Failure> {
    match Scratch::new()?.run(input, target, PATIENCE)? {
        Ran { ended: true, fingerprint: Some(fingerprint), .. } => {
            let what =
                "expected an input that comes to its end; 'qcowfuzz minimize' makes it small";
            Err(Failure::at(path, format_args!("{fingerprint}, {what}")))
        }
        _ => Ok(()),
    }
}

/// Where inputs are written that are to be run once.
pub struct Scratch(TempDir);

impl Scratch {
    /// A temporary folder.
    pub fn new() -> Result<Self, Failure> {
        let made = TempDir::with_prefix("qcowfuzz-");
        made.map(Self).map_err(|error| Failure::Told(format!("a temporary folder: {error}")))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs an input that is no file, or may be none that can be read twice.
    pub fn run(&self, input: &[u8], target: TargetKind, timeout: Duration) -> Result<Ran, Failure> {
        let path = self.0.path().join("input");
        corpus::replace(&path, self.0.path(), input)?;
        once(&path, target, timeout)
    }
}

/// As long as an input is waited for that is to be run again.
pub const PATIENCE: Duration = Duration::from_secs(25);

/// What `replay --json` says of an input, as far as it is asked.
#[derive(Deserialize)]
struct Told {
    fingerprint: Option<String>,
}

/// Runs the input at `path`.
pub fn once(path: &Path, target: TargetKind, timeout: Duration) -> Result<Ran, Failure> {
    let told = |error| Failure::at(path, error);
    let bytes = path.metadata().map_err(told)?.len();
    let program = std::env::current_exe().map_err(told)?;
    let mut command = Command::new(program);
    command
        .args(["replay", "--json", "--brief", "--supervised", "--target", target.name(), "--"])
        .arg(path);
    // What it says goes to files: a pipe that nobody empties would stop it. Its standard input ends when this
    // process does, and then it ends too.
    let [mut out, mut said] =
        [tempfile::tempfile().map_err(told)?, tempfile::tempfile().map_err(told)?];
    command.stdin(Stdio::piped());
    command.stdout(out.try_clone().map_err(told)?).stderr(said.try_clone().map_err(told)?);
    let mut child = command.spawn().map_err(told)?;
    let ended = wait(&mut child, timeout).map_err(told)?;
    let [out, complaint] = [text(&mut out).map_err(told)?, text(&mut said).map_err(told)?];
    let killed = |end: &str| (Some(ended_by(end)), true);
    let (fingerprint, ended) = match ended {
        Some(status) => match status.code() {
            Some(0 | 1) => {
                let told = serde_json::from_str::<Told>(&out);
                (told.map_err(|error| Failure::at(path, error))?.fingerprint, false)
            }
            Some(2) => {
                let line = complaint.trim_end().trim_start_matches("qcowfuzz: ");
                return Err(Failure::Told(line.to_string()));
            }
            _ => killed(&status.to_string()),
        },
        None => killed(NEVER),
    };
    Ok(Ran { fingerprint, ended, bytes })
}

/// What was written to a file.
fn text(file: &mut File) -> io::Result<String> {
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Ends this process when its standard input ends: whoever started it has ended.
pub fn end_with_input() {
    std::thread::spawn(|| {
        let mut byte = [0];
        while matches!(io::stdin().lock().read(&mut byte), Ok(1..)) {}
        std::process::exit(2);
    });
}

/// Waits for a process, and ends it where it does not end in time: `None`.
pub fn wait(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > timeout {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(END_CHECK_INTERVAL);
    }
}
