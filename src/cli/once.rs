//! Runs an input in a process of its own: one that a hang, a stack overflow or a signal may end.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::Failure;
use super::runner::Target;

/// How often a process is looked at that does not end.
const TICK: Duration = Duration::from_millis(2);

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

/// Refuses an input that ends its process, for the sake of a command that would end with it.
pub fn survived(path: &Path, target: Target) -> Result<(), Failure> {
    if path.as_os_str() == "-" {
        return Ok(());
    }
    match once(path, target, PATIENCE)? {
        Ran { ended: true, fingerprint: Some(fingerprint), .. } => {
            let what = "expected an input that can be run to its end; 'qcowfuzz minimize' can make it small";
            Err(Failure::at(path, format_args!("{fingerprint}, {what}")))
        }
        _ => Ok(()),
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
pub fn once(path: &Path, target: Target, timeout: Duration) -> Result<Ran, Failure> {
    let told = |error| Failure::at(path, error);
    let bytes = path.metadata().map_err(told)?.len();
    let program = std::env::current_exe().map_err(told)?;
    let mut command = Command::new(program);
    command.args(["replay", "--json", "--brief", "--target", target.name(), "--"]).arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(told)?;
    let mut outputs = (child.stdout.take(), child.stderr.take());
    let ended = wait(&mut child, timeout).map_err(told)?;
    let mut text = [String::new(), String::new()];
    // A line each: less than a pipe holds.
    let [out, complaint] = &mut text;
    let _ = outputs.0.as_mut().map(|from| from.read_to_string(out));
    let _ = outputs.1.as_mut().map(|from| from.read_to_string(complaint));
    let killed = |end: &str| (Some(ended_by(end)), true);
    let (fingerprint, ended) = match ended {
        Some(status) => match status.code() {
            Some(0 | 1) => {
                let told = serde_json::from_str::<Told>(out);
                (told.map_err(|error| Failure::at(path, error))?.fingerprint, false)
            }
            Some(2) => {
                let line = complaint.trim_end().trim_start_matches("qcowfuzz: ");
                return Err(Failure::Told(line.to_string()));
            }
            _ => killed(&status.to_string()),
        },
        None => killed(&format!("none in {} s", timeout.as_secs())),
    };
    Ok(Ran { fingerprint, ended, bytes })
}

/// Waits for a process, and ends it where it does not end in time: `None`.
fn wait(child: &mut Child, timeout: Duration) -> std::io::Result<Option<ExitStatus>> {
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
        std::thread::sleep(TICK);
    }
}
