//! The last lines that a worker printed on standard error.

use std::io::Read;
use std::process::ChildStderr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The number of bytes that are kept. A backtrace may follow the line that has the reason.
const KEPT_BYTES: usize = 1 << 16;

/// The time that the last bytes may take. They are in the pipe when the process has ended; but a process that the
/// worker started may hold the pipe open.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// Reads the standard error of a worker, and keeps its end.
#[derive(Debug)]
pub(crate) struct StderrTail {
    tail: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl StderrTail {
    /// Starts to read `stderr`.
    pub(crate) fn read(stderr: Option<ChildStderr>) -> Self {
        let tail = Arc::<Mutex<Vec<u8>>>::default();
        let kept = Arc::clone(&tail);
        let reader = std::thread::spawn(move || {
            let Some(mut stderr) = stderr else { return };
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = stderr.read(&mut bytes)
                && let Ok(mut tail) = kept.lock()
            {
                tail.extend_from_slice(&bytes[..read]);
                let excess = tail.len().saturating_sub(KEPT_BYTES);
                tail.drain(..excess);
            }
        });
        Self { tail, reader }
    }

    /// Returns the last text that the worker printed. The worker has ended.
    pub(crate) fn text(&self) -> String {
        let start = Instant::now();
        while !self.reader.is_finished() && start.elapsed() < LAST_BYTES {
            std::thread::sleep(Duration::from_millis(1));
        }
        let bytes = self.tail.lock().map(|tail| tail.clone()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
