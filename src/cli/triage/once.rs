//! Runs an input in a process of its own.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::cli::Failure;
use crate::cli::fuzz::ended_by;
use crate::cli::runner::Target;

use super::groups::Ran;

/// How often a process is looked at that does not end.
const TICK: Duration = Duration::from_millis(2);

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
    let fingerprint = match ended {
        Some(status) => match status.code() {
            Some(0 | 1) => {
                let told = serde_json::from_str::<Told>(out);
                told.map_err(|error| Failure::at(path, error))?.fingerprint
            }
            Some(2) => {
                let line = complaint.trim_end().trim_start_matches("qcowfuzz: ");
                return Err(Failure::Told(line.to_string()));
            }
            _ => Some(ended_by(&status.to_string())),
        },
        None => Some(ended_by(&format!("none in {} s", timeout.as_secs()))),
    };
    Ok(Ran { fingerprint, bytes })
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
