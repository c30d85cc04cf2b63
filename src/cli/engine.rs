//! The options `--engine-command` and `--engine-qemu-img`: an implementation in another process.

use std::ffi::OsString;
use std::sync::OnceLock;

use crate::harness::cases::implementation::Implementation;
use crate::harness::engine::failure;
use crate::harness::engines::command::EngineCommand;
use crate::harness::engines::image_program::ImageProgram;

use super::exit::{CommandError, ExitResult};

/// The options.
#[derive(Debug, clap::Args)]
pub struct EngineOption {
    /// Test the implementation behind this command, which a shell runs; docs/protocol.md describes its lines
    #[arg(long, global = true, value_name = "CMD")]
    engine_command: Option<String>,
    /// Test a program with the command line of qemu-img, which a shell runs: its verbs info, map, check and convert.
    /// docs/engines.md describes what it must print
    #[arg(long, global = true, value_name = "CMD", conflicts_with = "engine_command")]
    engine_qemu_img: Option<String>,
}

/// The implementation of this process that an option has chosen.
#[derive(Debug)]
struct Chosen {
    /// The option with its command. The processes that this one starts for its work need it, too.
    option: [String; 2],
    /// The statement of the command about itself, which may change while the command stays the same.
    statement: String,
}

static CHOSEN: OnceLock<Chosen> = OnceLock::new();

impl EngineOption {
    /// Starts the command, so that a mistake in it is reported at once. Returns the implementation behind it, if there
    /// is an option.
    pub fn start(&self) -> Result<Option<Implementation>, CommandError> {
        let (option, line, statement, implementation): (_, _, _, Implementation) =
            match (&self.engine_command, &self.engine_qemu_img) {
                (None, None) => return Ok(None),
                (Some(line), _) => {
                    let command = EngineCommand::start(line).map_err(CommandError::Message)?;
                    ("--engine-command", line, command.first_lines(), command.into())
                }
                (None, Some(line)) => {
                    let failed = |what| CommandError::Message(format!("--engine-qemu-img: {what}"));
                    let program = ImageProgram::start(line).map_err(failed)?;
                    ("--engine-qemu-img", line, program.identity(), program.into())
                }
            };
        let option = [option.to_string(), line.clone()];
        CHOSEN.get_or_init(|| Chosen { option, statement });
        Ok(Some(implementation))
    }
}

/// Returns a text that changes with the command and with its statement about itself. Both decide how an input runs. It
/// is empty without a command.
pub fn identity() -> String {
    CHOSEN.get().map_or(String::new(), |it| [&it.option.concat(), &*it.statement].concat())
}

/// Returns the arguments that choose the same implementation in another process.
pub fn arguments() -> Vec<OsString> {
    CHOSEN.get().into_iter().flat_map(|it| &it.option).map(OsString::from).collect()
}

/// Runs a verb. The failure of an engine is the failure of the verb.
pub fn caught(verb: impl FnOnce() -> ExitResult) -> ExitResult {
    failure::catch(verb).unwrap_or_else(|line| Err(CommandError::Message(line)))
}
