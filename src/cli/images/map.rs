//! `map`: prints the extents of an image as `qemu-img map` does.

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::cli::options;
use crate::cli::output::{CommandError, Exit, ExitResult};
use crate::disk::extent::{Extent, Window};
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::FileStorage;
use crate::findings::report::records::{MapRecord, RecordList};
use crate::walkers::chain::FileChain;
use crate::walkers::{Disk, MapError, WalkScratch, map_extents};

use super::{at_layer, open_alone, open_chain, open_disk, open_disk_alone};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command opens the backing files, data files and extents that the image names: only regular \
files, no protocols, at most 64 images in a chain. Relative names start at the directory of the image that \
contains them (qemu-img 10.0.2 resolves those of data files from the current directory). Use \
--no-follow for an image that you do not trust: it could name any file on this machine.

Where qemu-img does so, data in holes of the file are reported as zeros, too.

Exit codes: 0 the extents were printed; 2 the image could not be read to the end of the window. \
In that case the printed extents are incomplete.

Example: qcowfuzz map --output json --start-offset 1G --max-length 64M disk.qcow2")]
pub struct Arguments {
    /// The image: a file or a block device
    image: PathBuf,
    /// The format of the image, by its name in qemu-img, such as qcow2 or raw [default: by its first bytes, as in
    /// qemu-img]
    #[arg(short, long, value_name = "FMT")]
    format: Option<String>,
    /// The output format; the human format lists only data, and cannot show compressed data, nor without --blocks
    /// the formats of which QEMU reports no blocks
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    /// Do not open files that the image names; print ranges that only a backing file has as holes
    #[arg(long)]
    no_follow: bool,
    /// Print the blocks of images in all formats by their tables; without this, some formats are all data, as in
    /// qemu-img
    #[arg(long)]
    blocks: bool,
    /// Start at this byte of the disk; suffixes k, M, G, T, P, E
    #[arg(short, long, value_name = "N", value_parser = options::parse_size, allow_hyphen_values = true)]
    start_offset: Option<u64>,
    /// Print at most N bytes of the disk [default: to its end]
    #[arg(short = 'l', long, value_name = "N", value_parser = options::parse_size, allow_hyphen_values = true)]
    max_length: Option<u64>,
}

/// The output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// Text for people
    #[default]
    Human,
    /// JSON for programs
    Json,
}

/// The size of the output buffer.
const BUFFER_BYTES: usize = 64 << 10;

/// The reason why the output of a walk stopped early.
enum MapStop {
    Output(io::Error),
    NoOffset(Extent),
}

/// Prints the extents of the window.
pub fn run(arguments: &Arguments) -> ExitResult {
    let (image, format) = (&arguments.image, arguments.format.as_deref());
    let chain = match arguments.no_follow {
        true => open_alone(image, format)?,
        false => open_chain(image, format)?,
    };
    let disk = match arguments.no_follow {
        true => open_disk_alone(&chain, image, "map")?,
        false => open_disk(&chain, image)?,
    };
    let disk = disk.with_host_holes();
    let disk = if arguments.blocks { disk } else { disk.as_qemu_reports() };
    let window = Window {
        start: GuestOffset::new(arguments.start_offset.unwrap_or(0)),
        length_bytes: arguments.max_length.unwrap_or(u64::MAX),
    };
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
    let walked = match arguments.output {
        Form::Json => json(&disk, window, &mut out),
        Form::Human => human(&disk, window, &chain, &mut out),
    };
    // The extents before an error are printed before the message.
    let flushed = out.flush();
    match walked {
        Ok(Ok(())) => flushed.map(|()| Exit::Nothing).map_err(|error| CommandError::output(&error)),
        Ok(Err(error)) => Err(at_layer(&chain, image, &error)),
        Err(MapStop::Output(error)) => Err(CommandError::output(&error)),
        Err(MapStop::NoOffset(extent)) => {
            Err(CommandError::at(&arguments.image, without_offset(&extent)))
        }
    }
}

/// Returns the message about an extent of data without a host offset.
fn without_offset(extent: &Extent) -> String {
    let (data, expected) = match extent.mapping.compressed {
        true => ("the compressed data", "--output json"),
        false => ("data without a host offset", "--blocks or --output json"),
    };
    let start = extent.start;
    format!("cannot print {data} at guest offset {start} in the human format, expected {expected}")
}

type Walked = Result<Result<(), MapError>, MapStop>;

fn json(disk: &Disk<FileStorage>, window: Window, out: &mut impl Write) -> Walked {
    let mut list = RecordList::begin(&mut *out).map_err(MapStop::Output)?;
    let range = window.clipped(disk.virtual_size_bytes());
    if range.is_empty() {
        list.push(&MapRecord::empty(window.start.get())).map_err(MapStop::Output)?;
    }
    let walked =
        walk(disk, window, |extent| list.push(&MapRecord::from(extent)).map_err(MapStop::Output))?;
    // If the walk failed, the list stays open, as in the output of qemu-img, so that no parser takes it for complete.
    if walked.is_ok() {
        list.end().and_then(|out| out.write_all(b"\n")).map_err(MapStop::Output)?;
    }
    Ok(walked)
}

fn human(
    disk: &Disk<FileStorage>,
    window: Window,
    chain: &FileChain,
    out: &mut impl Write,
) -> Walked {
    writeln!(out, "{:<16}{:<16}{:<16}File", "Offset", "Length", "Mapped to")
        .map_err(MapStop::Output)?;
    walk(disk, window, |extent| {
        let mapping = &extent.mapping;
        match mapping.offset {
            Some(offset) if mapping.data && !mapping.zero => {
                let columns = [extent.start.get(), extent.length_bytes, offset.get()];
                for column in columns {
                    // C's %#x has no prefix for zero.
                    match column {
                        0 => write!(out, "{:<16}", 0),
                        column => write!(out, "{column:<#16x}"),
                    }
                    .map_err(MapStop::Output)?;
                }
                // Writes the bytes of the name, because it need not be UTF-8.
                let number = disk.extent_index(mapping.depth, extent.start);
                let file = chain.data_path(mapping.depth, number).unwrap_or(Path::new(""));
                out.write_all(file.as_os_str().as_encoded_bytes())
                    .and_then(|()| out.write_all(b"\n"))
                    .map_err(MapStop::Output)
            }
            None if mapping.data => Err(MapStop::NoOffset(*extent)),
            _ => Ok(()),
        }
    })
}

/// Walks until `print` fails, and returns the result of the walk, or the failure of `print`.
fn walk(
    disk: &Disk<FileStorage>,
    window: Window,
    mut print: impl FnMut(&Extent) -> Result<(), MapStop>,
) -> Walked {
    let mut stopped = None;
    let mut visitor = |extent: Extent| match print(&extent) {
        Ok(()) => ControlFlow::Continue(()),
        Err(stop) => {
            stopped = Some(stop);
            ControlFlow::Break(())
        }
    };
    let walked = map_extents(disk, window, &mut WalkScratch::new(), &mut visitor);
    match stopped {
        Some(stop) => Err(stop),
        None => Ok(walked),
    }
}
