//! `convert`: writes the guest's bytes of an image to a raw file.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::base::files;
use crate::cli::output::{self, CommandError, Exit, ExitResult};
use crate::disk::extent::{Extent, Window};
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::FileStorage;
use crate::formats::{Declared, declared};
use crate::walkers::chain::FileChain;
use crate::walkers::{Disk, MapError, WalkScratch, map_extents, read};

use super::{at_layer, not_followed, open_alone, open_chain, open_disk, open_disk_alone};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command opens the backing files, data files and extents that the image names, as 'map' does, and copies their \
data. An image that you do not trust could name any file on this machine: use --no-follow. Blocks of 4 KiB \
that contain only zeros become holes of the output. If the command fails, there is no output.

Exit codes (those of 'qemu-img convert'): 0 the output was written; 1 the image could not be read, or the \
output could not be written.

Example: qcowfuzz convert -O raw disk.qcow2 disk.raw")]
pub struct Arguments {
    /// The image: a file or a block device
    image: PathBuf,
    /// The raw file
    output: PathBuf,
    /// The format of the image, by its name in qemu-img, such as qcow2 or raw [default: by its first bytes, as in
    /// qemu-img]
    #[arg(short, long, value_name = "FMT")]
    format: Option<String>,
    /// The format of the output
    #[arg(short = 'O', long, value_name = "FMT", default_value = "raw", value_parser = ["raw"])]
    output_format: String,
    /// Refuse an image that names other files, and open none of them
    #[arg(long)]
    no_follow: bool,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

/// The number of bytes that are read at once.
const COPIED_BYTES: usize = 1 << 20;
/// Zeros of this length become a hole, as in qemu-img (its option `-S`).
const HOLE_BYTES: usize = 4 << 10;
/// A block of zeros.
static ZEROS: [u8; HOLE_BYTES] = [0; HOLE_BYTES];

/// Writes the raw file.
pub fn run(arguments: &Arguments) -> ExitResult {
    convert(arguments).map_err(CommandError::with_exit_code_of_qemu_img)
}

fn convert(arguments: &Arguments) -> ExitResult {
    let Arguments { image, output, .. } = arguments;
    let existing = output::not_the_input(output, image, arguments.force)?;
    let format = arguments.format.as_deref();
    let chain = match arguments.no_follow {
        true => open_alone(image, format)?,
        false => open_chain(image, format)?,
    };
    // As qemu-img does, this skips holes of the files: some are in a parent that must not be read.
    let disk = match arguments.no_follow {
        true => open_disk_of_one_file(&chain, image)?,
        false => open_disk(&chain, image)?,
    };
    let disk = disk.with_host_holes();
    let mut unreadable = None;
    let written = files::create(output, existing, |file| {
        write(&disk, file, &mut |error| {
            unreadable = Some(error);
            io::Error::other("the image could not be read")
        })
    });
    match unreadable {
        Some(error) => Err(at_layer(&chain, image, &error)),
        None => Ok(written.map(|()| Exit::Nothing)?),
    }
}

/// Opens the disk of an image that names no other file.
fn open_disk_of_one_file<'c>(
    chain: &'c FileChain,
    path: &Path,
) -> Result<Disk<'c, FileStorage>, CommandError> {
    let disk = open_disk_alone(chain, path, "convert")?;
    let layers = chain.layers();
    let declared = layers.first().map(|layer| declared(chain.format(), layer)).transpose();
    let declared = declared.map_err(|error| at_layer(chain, path, &error))?;
    let Declared { backing_name, data_file_name, .. } = declared.unwrap_or_default();
    match [backing_name, data_file_name].into_iter().find(|name| !name.is_empty()) {
        Some(name) => {
            let needed = format_args!("the file {}", String::from_utf8_lossy(&name));
            Err(not_followed(path, "convert", needed))
        }
        None => Ok(disk),
    }
}

/// Writes the guest's bytes to an empty file. `failed` takes the error of the image.
fn write(
    disk: &Disk<FileStorage>,
    file: &File,
    failed: &mut dyn FnMut(MapError) -> io::Error,
) -> io::Result<()> {
    file.set_len(disk.virtual_size_bytes())?;
    let (mut piece, mut scratch) = (vec![0; COPIED_BYTES], WalkScratch::new());
    let mut copied = Ok(());
    let mut visitor = |extent: Extent| {
        if extent.mapping.zero {
            return ControlFlow::Continue(());
        }
        copied = copy(disk, &extent, file, &mut piece, &mut scratch, failed);
        match copied {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };
    let walked = map_extents(disk, Window::ALL, &mut WalkScratch::new(), &mut visitor);
    copied.and(walked.map_err(failed))
}

/// Copies the data of an extent, except for blocks of zeros.
fn copy(
    disk: &Disk<FileStorage>,
    extent: &Extent,
    file: &File,
    piece: &mut [u8],
    scratch: &mut WalkScratch,
    failed: &mut dyn FnMut(MapError) -> io::Error,
) -> io::Result<()> {
    let (mut at, mut left) = (extent.start.get(), extent.length_bytes);
    while left > 0 {
        // Pieces end at multiples of their length, so that blocks lie at multiples of theirs.
        let until_edge = COPIED_BYTES as u64 - at % COPIED_BYTES as u64;
        let length = usize::try_from(left.min(until_edge)).unwrap_or(COPIED_BYTES);
        let bytes = &mut piece[..length];
        read(disk, GuestOffset::new(at), bytes, scratch).map_err(&mut *failed)?;
        write_blocks(file, at, bytes)?;
        at += length as u64;
        left -= length as u64;
    }
    Ok(())
}

/// Writes the blocks that contain anything but zeros, neighbours at once.
fn write_blocks(file: &File, start: u64, bytes: &[u8]) -> io::Result<()> {
    let first = (HOLE_BYTES as u64 - start % HOLE_BYTES as u64) as usize;
    let (head, rest) = bytes.split_at(first.min(bytes.len()));
    let write = |from: usize, end: usize| match bytes.get(from..end) {
        None | Some([]) => Ok(()),
        Some(data) => file.write_all_at(data, start + from as u64),
    };
    let (mut from, mut at) = (0, 0);
    for block in [head].into_iter().chain(rest.chunks(HOLE_BYTES)) {
        let end = at + block.len();
        if *block == ZEROS[..block.len()] {
            write(from, at)?;
            from = end;
        }
        at = end;
    }
    write(from, at)
}
