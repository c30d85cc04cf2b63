//! `asm`: text as a program.

use std::path::PathBuf;

use qcowfuzz::internal::disk::files::Existing;
use qcowfuzz::programs::text;

use super::exit::{Exit, Failure, Outcome};
use super::{input, save};

/// Assemble a program from its text
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 done; 2 the text could not be read or means nothing, or the file could not be written.

Example: qcowfuzz disasm crash | sed 's/clusters=16/clusters=1/' | qcowfuzz asm - -o smaller")]
pub struct Arguments {
    /// The text, as 'qcowfuzz disasm' prints it; - for standard input
    text: PathBuf,
    /// The file that the program is written to
    #[arg(short, long, value_name = "F")]
    output: PathBuf,
    /// Replace the file where it is there already
    #[arg(long)]
    force: bool,
}

/// Assembles the text.
pub fn run(arguments: &Arguments) -> Outcome {
    let bytes = input::read(&arguments.text)?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let at = error.valid_up_to();
        Failure::at(
            &arguments.text,
            format_args!("byte {at} is not UTF-8, expected a program's text"),
        )
    })?;
    let program = text::assemble(text).map_err(|error| Failure::at(&arguments.text, error))?;
    save::write(&arguments.output, Existing::forced(arguments.force), &program.encode())?;
    Ok(Exit::Nothing)
}
