//! `export`: writes the image that a program builds to a file.

use std::path::PathBuf;

use crate::base::files::Existing;
use crate::findings::explain::explain;
use crate::harness::targets::TargetKind;
use crate::images::export::Holes;
use crate::programs::export;

use super::exit::{Exit, ExitResult};
use super::input;
use super::target;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
If the program builds a chain, the command writes every layer and every data file, and derives their \
names from the output's: beside crash.qcow2 it writes crash.0.qcow2 or crash.0.raw (the lowest layer), \
crash.1.qcow2 and so on, and crash.N.data for each layer, including the top one, that has an external \
data file. The files beside a VMDK image are crash.N-s0.vmdk, crash.N-s1.vmdk and so on.

Exit codes: 0 the image was written; 2 the input could not be read, or a file could not be written.

Example: qcowfuzz export artifacts/map_extents/crash-1f0c -o crash.qcow2 && qemu-img map crash.qcow2")]
pub struct Arguments {
    /// The program: a file with any content; '-' for standard input
    input: PathBuf,
    /// The fuzz target whose programs these are; programs of hostile damage their images
    #[arg(long, value_parser = target::parser(), default_value = target::DEFAULT)]
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
pub fn run(arguments: &Arguments) -> ExitResult {
    let Arguments { target, output, .. } = arguments;
    target::reject_files(*target, "--target")?;
    let input = input::read(&arguments.input)?;
    let limits = target.definition().limits;
    let explained = explain(&input, limits, usize::MAX, &export::names(output));
    let holes = if arguments.fill { Holes::Fill } else { Holes::Keep };
    export::write(output, Existing::forced(arguments.force), explained.built(), holes)?;
    Ok(Exit::Nothing)
}
