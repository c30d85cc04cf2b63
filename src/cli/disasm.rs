//! `disasm`: prints a program as text.

use std::io::Write;
use std::path::PathBuf;

use crate::programs::Program;

use super::exit::{CommandError, Exit, ExitResult};
use super::input;
use super::print::buffered_stdout;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 the program was printed; 2 the input could not be read.

Example: qcowfuzz disasm artifacts/map_extents/crash-1f0c")]
pub struct Arguments {
    /// The program: a file with any content; '-' for standard input
    input: PathBuf,
}

/// Prints the program.
pub fn run(arguments: &Arguments) -> ExitResult {
    let program = Program::decode(&input::read(&arguments.input)?);
    let mut out = buffered_stdout();
    write!(out, "{program}")
        .and_then(|()| out.flush())
        .map_err(|error| CommandError::output(&error))?;
    Ok(Exit::Nothing)
}
