//! `export`: the image that a program builds, as a file.

use std::path::PathBuf;

use qcowfuzz::engines::Walker;
use qcowfuzz::export::Holes;
use qcowfuzz::harness::Harness;

use super::files::{self, Existing};
use super::{Exit, Outcome};

/// Write the image that a program builds to a file, for qemu-img and others
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 done; 2 the input could not be read, or the file could not be written.

Example: qcowfuzz export artifacts/map_extents/crash-1f0c -o crash.qcow2 && qemu-img map crash.qcow2")]
pub struct Arguments {
    /// The program, a file of any content; - for standard input
    input: PathBuf,
    /// The file that the image is written to
    #[arg(short, long, value_name = "F.qcow2")]
    output: PathBuf,
    /// Replace the file where it is there already
    #[arg(long)]
    force: bool,
    /// Write holes as zeros, so that qemu-img takes no data for zeros; for images of up to 1 GiB
    #[arg(long)]
    fill: bool,
}

/// Writes the image.
pub fn run(arguments: &Arguments) -> Outcome {
    let input = files::read(&arguments.input)?;
    let mut harness = Harness::new(Walker::default());
    let image = harness.build(&input);
    let holes = if arguments.fill { Holes::Fill } else { Holes::Keep };
    files::write_image(&arguments.output, Existing::forced(arguments.force), image, holes)?;
    Ok(Exit::Nothing)
}
