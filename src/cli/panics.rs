//! Panics of the code under test: they are findings, and reported as such.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

/// Where the last panic was, and what it said.
#[derive(Clone, Debug, Default)]
pub struct PanicNote {
    /// The source file.
    pub file: String,
    /// Place and message.
    pub detail: String,
}

static LAST_PANIC: Mutex<Option<PanicNote>> = Mutex::new(None);

/// Keeps panics of the code under test from being printed: they are findings, and reported as such.
pub struct PanicNotes;

impl PanicNotes {
    /// Until it is dropped.
    pub fn take_over() -> Self {
        std::panic::set_hook(Box::new(|panic| {
            let payload = panic.payload();
            let message = payload
                .downcast_ref::<&str>()
                .copied()
                .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
                .unwrap_or("a panic without a message");
            let file = panic.location().map_or("", |location| location.file()).to_string();
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            let note = PanicNote { file, detail: format!("{place}: {message}") };
            if let Ok(mut last) = LAST_PANIC.lock() {
                *last = Some(note);
            }
        }));
        Self
    }
}

impl Drop for PanicNotes {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            drop(std::panic::take_hook());
        }
    }
}

/// Runs the code under test.
///
/// # Errors
/// It panicked; while there are [`PanicNotes`], the place is told.
pub fn caught<T>(run: impl FnOnce() -> T) -> Result<T, PanicNote> {
    let last = || LAST_PANIC.lock().ok().and_then(|mut last| last.take()).unwrap_or_default();
    catch_unwind(AssertUnwindSafe(run)).map_err(|_| last())
}
