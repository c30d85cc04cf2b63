//! `asm`: assembles a program from its text.

use std::path::PathBuf;

use crate::base::files::Existing;
use crate::programs::text;

use super::exit::{CommandError, Exit, ExitResult};
use super::{input, save};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 the program was written; 2 the text could not be read or is not a valid program, or the \
file could not be written.

Example: qcowfuzz disasm crash | sed 's/clusters=16/clusters=1/' | qcowfuzz asm - -o smaller")]
pub struct Arguments {
    /// The text, in the form that 'qcowfuzz disasm' prints; '-' for standard input
    text: PathBuf,
    /// Write the program to this file
    #[arg(short, long, value_name = "F")]
    output: PathBuf,
    /// Replace the output file if it exists
    #[arg(long)]
    force: bool,
}

/// Assembles the text.
pub fn run(arguments: &Arguments) -> ExitResult {
    let bytes = input::read(&arguments.text)?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let at = error.valid_up_to();
        CommandError::at(
            &arguments.text,
            format_args!("invalid UTF-8 at byte {at}, expected the text of a program"),
        )
    })?;
    let program = text::assemble(text).map_err(|error| CommandError::at(&arguments.text, error))?;
    save::write(&arguments.output, Existing::forced(arguments.force), &program.encode())?;
    Ok(Exit::Nothing)
}
