//! Waits for processes.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use crate::harness::ChainFiles;

/// The time between two checks whether a process has ended.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(2);

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
