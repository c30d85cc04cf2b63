//! The option `--engine-command`: an implementation in another process.

use std::ffi::OsString;
use std::sync::OnceLock;

use crate::harness::command_engine::EngineCommand;
use crate::harness::engine_failure;

use super::exit::{CommandError, ExitResult};

/// The command. The processes that this one starts for its work need it, too.
static LINE: OnceLock<String> = OnceLock::new();
/// The first lines of the command, which may change while the command stays the same.
static FIRST_LINES: OnceLock<String> = OnceLock::new();

/// Starts the command, so that a mistake in it is reported at once.
pub fn start(line: &str) -> Result<EngineCommand, CommandError> {
    LINE.get_or_init(|| line.to_string());
    let command = EngineCommand::start(line).map_err(CommandError::Message)?;
    FIRST_LINES.get_or_init(|| command.first_lines());
    Ok(command)
}

/// Returns a text that changes with the command and with its first lines. Both decide how an input runs. It is empty
/// without a command.
pub fn identity() -> String {
    [&LINE, &FIRST_LINES].map(|text| text.get().map_or("", String::as_str)).concat()
}

/// Returns the command, if there is one.
fn line() -> Option<&'static str> {
    LINE.get().map(String::as_str)
}

/// Returns the arguments that choose the same implementation in another process.
pub fn arguments() -> Vec<OsString> {
    line().into_iter().flat_map(|line| ["--engine-command", line]).map(OsString::from).collect()
}

/// Runs a verb. The failure of an engine is the failure of the verb.
pub fn caught(verb: impl FnOnce() -> ExitResult) -> ExitResult {
    engine_failure::catch(verb).unwrap_or_else(|line| Err(CommandError::Message(line)))
}
