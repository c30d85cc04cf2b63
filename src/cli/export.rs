//! `export`: the image that a program builds, as a file.

use std::path::PathBuf;

use qcowfuzz::harness::Harness;
use qcowfuzz::harness::Walker;
use qcowfuzz::internal::disk::files::Existing;
use qcowfuzz::internal::harness::export;
use qcowfuzz::internal::images::export::Holes;

use super::exit::{Exit, Outcome};
use super::input;

/// Write the image that a program builds to a file, for qemu-img and others
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Of a chain every layer is written, and every data file, with names made of the output's: beside \
crash.qcow2 lie crash.0.qcow2 or crash.0.raw (the lowest layer), crash.1.qcow2 and so on, and \
crash.N.data for each layer, the top one too, that has its data in a file of its own.

Exit codes: 0 done; 2 the input could not be read, or the file could not be written.

Example: qcowfuzz export artifacts/map_extents/crash-1f0c -o crash.qcow2 && qemu-img map crash.qcow2")]
pub struct Arguments {
    /// The program, a file of any content; - for standard input
    input: PathBuf,
    /// The file that the image is written to
    #[arg(short, long, value_name = "F.qcow2")]
    output: PathBuf,
    /// Replace files that are there already
    #[arg(long)]
    force: bool,
    /// Write holes as zeros, so that qemu-img takes no data for zeros; for images of up to 1 GiB
    #[arg(long)]
    fill: bool,
}

/// Writes the image.
pub fn run(arguments: &Arguments) -> Outcome {
    let input = input::read(&arguments.input)?;
    let output = &arguments.output;
    let mut harness = Harness::new(Walker::default()).named(export::names(output));
    harness.build(&input);
    let holes = if arguments.fill { Holes::Fill } else { Holes::Keep };
    let built = (harness.vm(), harness.images());
    export::write(output, Existing::forced(arguments.force), built, holes)?;
    Ok(Exit::Nothing)
}
