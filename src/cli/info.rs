//! `info`: prints the facts about an image that do not depend on other files.

pub mod human;
mod qcow2;
pub mod record;
mod text;
mod vmdk;

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::disk::image_format::ImageFormat;
use crate::disk::storage::{Layer, Storage};
use crate::formats::error::MapError;
use crate::walkers::Disk;

use super::exit::{CommandError, Exit, ExitResult};
use super::map::Form;
use super::opening::{ImageFile, malformed};
use super::print::{buffered_stdout, json_of_qemu_img};
use record::{Child, Details, FormatSpecific, InfoRecord};
use text::Text;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command opens no backing file and no data file. It opens the files of the extents that a VMDK image \
names: only regular files, no protocols. Use --no-follow for an image that you do not trust: it could name any \
file on this machine. IMAGE is always the name of a file, even if it begins like a protocol ('nbd:').

The human format prints the dates of snapshots in UTC; qemu-img prints them in local time.

Exit codes (those of 'qemu-img info'): 0 the facts were printed; 1 the image could not be opened.

Example: qcowfuzz info --output json disk.qcow2")]
pub(super) struct Arguments {
    /// The image file
    image: PathBuf,
    /// The format of the image, such as qcow2, vmdk or vpc [default: by its first bytes, as in qemu-img]
    #[arg(short, long, value_name = "FMT")]
    format: Option<String>,
    /// The output format
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    /// Do not open files that the image names; refuse a VMDK image whose extents are other files
    #[arg(long)]
    no_follow: bool,
}

/// Prints the record of the image.
pub(super) fn run(arguments: &Arguments) -> ExitResult {
    info(arguments).map_err(CommandError::with_exit_code_of_qemu_img)
}

fn info(arguments: &Arguments) -> ExitResult {
    let Arguments { image, format, no_follow, .. } = arguments;
    let info = record_of_file(image, format.as_deref(), *no_follow)?;
    let mut out = buffered_stdout();
    let printed = match arguments.output {
        Form::Human => human::print(&info, &mut out),
        Form::Json => json_of_qemu_img(&info, &mut out),
    };
    match printed.and_then(|()| out.flush()) {
        Ok(()) => Ok(Exit::Nothing),
        Err(error) => Err(CommandError::output(&error)),
    }
}

/// Returns the record of the image at `path`. `format` is the value of `-f`; `no_follow` refuses an image whose extents
/// are other files.
///
/// # Errors
/// A file cannot be opened, QEMU refuses the image, or a feature is not supported.
pub fn record_of_file(
    path: &Path,
    format: Option<&str>,
    no_follow: bool,
) -> Result<InfoRecord, CommandError> {
    let file = ImageFile::open(path, format, no_follow)?;
    let record = record_of(path, file.format, &file.layer());
    record.map_err(|error| malformed(path, &file.storage, &error))
}

/// Returns the record of the image in `layer`, which is of `format`, and has the files of its extents. `path` is only
/// its name (QEMU `block/qapi.c`, `bdrv_query_block_graph_info`).
///
/// # Errors
/// QEMU refuses the image, a feature is not supported, the file of an extent is missing, or a read failed.
fn record_of<S: Storage + ?Sized>(
    path: &Path,
    format: ImageFormat,
    layer: &Layer<S>,
) -> Result<InfoRecord, MapError> {
    let (filename, storage) = (Text::of_path(path), layer.image);
    let actual_size = storage.allocated_bytes();
    let children = vec![Child::file("file".to_string(), filename.clone(), storage)?];
    let format_name = format.name();
    let mut info = InfoRecord {
        children,
        filename,
        actual_size,
        format: format_name,
        ..InfoRecord::default()
    };
    match format {
        ImageFormat::Qcow2 => qcow2::describe(&mut info, storage)?,
        ImageFormat::Vmdk => vmdk::describe(&mut info, layer)?,
        // These formats have no facts of their own. QEMU prints no block size for a fixed disk (`vpc_co_get_info`).
        _ => {
            let disk = Disk::open_alone(format, storage)?;
            info.virtual_size = disk.virtual_size_bytes();
            info.cluster_size = disk.block_bytes();
            info.dirty_flag = Some(false);
        }
    }
    Ok(info)
}

impl Child {
    /// Returns the node of a file that an image, or a part of it, lies in.
    fn file<S: Storage + ?Sized>(
        name: String,
        filename: Text,
        storage: &S,
    ) -> Result<Self, MapError> {
        let info = InfoRecord {
            virtual_size: whole_sectors(storage)?,
            filename,
            format: "file",
            actual_size: storage.allocated_bytes(),
            format_specific: Some(FormatSpecific { kind: "file", data: Details::default() }),
            dirty_flag: Some(false),
            ..InfoRecord::default()
        };
        Ok(Self { name, info })
    }
}

/// Returns the length of a file as QEMU sees it: that of a raw disk.
fn whole_sectors<S: Storage + ?Sized>(storage: &S) -> Result<u64, MapError> {
    Ok(Disk::open_alone(ImageFormat::Raw, storage)?.virtual_size_bytes())
}
