//! The failure of an engine that cannot work at all: no input is to blame, so it is no finding.

use std::panic::resume_unwind;
#[cfg(feature = "fuzzer")]
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One line for the user. It unwinds the stack, past everything that catches panics of the code under test, to
/// [`catch`]: an engine has no other way to end a run without a verdict.
pub(crate) struct EngineFailure(String);

/// Ends the run without a verdict.
pub(crate) fn fail(line: String) -> ! {
    resume_unwind(Box::new(EngineFailure(line)))
}

/// Passes a failure on, if `payload` is one: it is not a panic of the code under test.
pub(crate) fn pass_on(payload: &(dyn std::any::Any + Send)) {
    if let Some(EngineFailure(line)) = payload.downcast_ref() {
        resume_unwind(Box::new(EngineFailure(line.clone())));
    }
}

/// Runs `work`.
///
/// # Errors
/// Returns the line of the engine's failure.
#[cfg(feature = "fuzzer")]
pub(crate) fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        match payload.downcast::<EngineFailure>() {
            Ok(failure) => failure.0,
            Err(panic) => resume_unwind(panic),
        }
    })
}
