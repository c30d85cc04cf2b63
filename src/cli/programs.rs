//! `asm`, `disasm` and `export`: assemble a program from its text, print its text, and write the image that it builds.

use std::io::Write;
use std::path::PathBuf;

use crate::base::files::Existing;
use crate::findings::explain::explain;
use crate::harness::cases::implementation::Implementation;
use crate::harness::targets::TargetKind;
use crate::images::files::export::Holes;
use crate::programs::{Program, export, text};

use super::output::{self, CommandError, Exit, ExitResult, print_with};
use super::{inputs, options};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 the program was written; 2 the text could not be read or is not a valid program, or the \
file could not be written.

Example: qcowfuzz disasm crash | sed 's/clusters=16/clusters=1/' | qcowfuzz asm - -o smaller")]
pub struct AsmArguments {
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
pub fn asm(arguments: &AsmArguments) -> ExitResult {
    let bytes = inputs::read(&arguments.text)?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let at = error.valid_up_to();
        CommandError::at(
            &arguments.text,
            format_args!("invalid UTF-8 at byte {at}, expected the text of a program"),
        )
    })?;
    let program = text::assemble(text).map_err(|error| CommandError::at(&arguments.text, error))?;
    output::save(&arguments.output, Existing::forced(arguments.force), &program.encode())?;
    Ok(Exit::Nothing)
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 the program was printed; 2 the input could not be read.

Example: qcowfuzz disasm artifacts/map_extents/crash-1f0c")]
pub struct DisasmArguments {
    /// The program: a file with any content; '-' for standard input
    input: PathBuf,
    /// The fuzz target of the program
    #[arg(long, value_parser = options::target_parser(), default_value = options::DEFAULT_TARGET)]
    target: TargetKind,
}

/// Prints the program.
pub fn disasm(implementation: &Implementation, arguments: &DisasmArguments) -> ExitResult {
    let DisasmArguments { input, target } = arguments;
    options::reject_files(*target, "--target")?;
    let bytes = inputs::read(input)?;
    let program = Program::decode(&target.judged(&implementation.facts(), &bytes));
    print_with(|out| write!(out, "{program}"))?;
    Ok(Exit::Nothing)
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
If the program builds a chain, the command writes every layer and every data file, and derives their \
names from the output's: beside crash.qcow2 it writes crash.0.qcow2 or crash.0.raw (the lowest layer), \
crash.1.qcow2 and so on, and crash.N.data for each layer, including the top one, that has an external \
data file. The files of the extents of an image are crash.N-s0, crash.N-s1 and so on, with the ending of its format.

Exit codes: 0 the image was written; 2 the input could not be read, or a file could not be written.

Example: qcowfuzz export artifacts/map_extents/crash-1f0c -o crash.qcow2 && qemu-img map crash.qcow2")]
pub struct ExportArguments {
    /// The program: a file with any content; '-' for standard input
    input: PathBuf,
    /// The fuzz target whose programs these are; programs of hostile damage their images
    #[arg(long, value_parser = options::target_parser(), default_value = options::DEFAULT_TARGET)]
    target: TargetKind,
    /// Write the image to this file
    #[arg(short, long, value_name = "F.qcow2")]
    output: PathBuf,
    /// Replace existing files
    #[arg(long)]
    force: bool,
    /// Write zeros instead of holes, so that qemu-img does not report data as zeros; at most 1 GiB
    #[arg(long)]
    fill: bool,
}

/// Writes the image.
pub fn export_image(implementation: &Implementation, arguments: &ExportArguments) -> ExitResult {
    let ExportArguments { target, output, .. } = arguments;
    options::reject_files(*target, "--target")?;
    let input = inputs::read(&arguments.input)?;
    let input = target.judged(&implementation.facts(), &input);
    let limits = target.definition().limits;
    let explained = explain(&input, limits, usize::MAX, &export::names(output));
    let holes = if arguments.fill { Holes::Fill } else { Holes::Keep };
    export::write(output, Existing::forced(arguments.force), explained.built.files(), holes)?;
    Ok(Exit::Nothing)
}
