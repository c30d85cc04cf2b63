//! `info`: prints the facts about an image that do not depend on other files.

pub mod human;
mod qcow2;
pub mod record;
mod text;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::disk::image_format::ImageFormat;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::walkers::Disk;

use super::exit::{CommandError, Exit, ExitResult};
use super::map::Form;
use super::opening::{malformed, open_file};
use super::print::json_of_qemu_img;
use record::{Child, Details, FormatSpecific, InfoRecord};
use text::Text;

/// Print the format, the sizes, the features and the snapshots of an image, as 'qemu-img info' does
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command reads only the image itself, and opens no file that the image names. IMAGE is always the name \
of a file, even if it begins like a protocol ('nbd:').

The human format prints the dates of snapshots in UTC; qemu-img prints them in local time.

Exit codes (those of 'qemu-img info'): 0 the facts were printed; 1 the image could not be opened.

Example: qcowfuzz info --output json disk.qcow2")]
pub struct Arguments {
    /// The image file
    image: PathBuf,
    /// The format of the image: qcow2, raw, vpc or vhdx [default: by its first bytes, as in qemu-img]
    #[arg(short, long, value_name = "FMT")]
    format: Option<String>,
    /// The output format
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
}

/// Prints the record of the image.
pub fn run(arguments: &Arguments) -> ExitResult {
    info(arguments).map_err(CommandError::with_exit_code_of_qemu_img)
}

fn info(arguments: &Arguments) -> ExitResult {
    let image = &arguments.image;
    let (storage, format) = open_file(image, arguments.format.as_deref())?;
    let info =
        info_record(image, format, &storage).map_err(|error| malformed(image, &storage, &error))?;
    let mut out = io::stdout().lock();
    let printed = match arguments.output {
        Form::Human => human::print(&info, &mut out),
        Form::Json => json_of_qemu_img(&info, &mut out),
    };
    match printed.and_then(|()| out.flush()) {
        Ok(()) => Ok(Exit::Nothing),
        Err(error) => Err(CommandError::output(&error)),
    }
}

/// Returns the record of the image in `storage`, which is of `format`. `path` is only its name (QEMU `block/qapi.c`,
/// `bdrv_query_block_graph_info`).
///
/// # Errors
/// QEMU refuses the image, a feature is not supported, or a read failed.
pub fn info_record<S: Storage + ?Sized>(
    path: &Path,
    format: ImageFormat,
    storage: &S,
) -> Result<InfoRecord, MapError> {
    let filename = Text::of_path(path);
    let actual_size = storage.allocated_bytes();
    let file = Child { name: "file", info: file_info(filename.clone(), storage)? };
    let children = vec![file];
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
        ImageFormat::Vmdk => return Err(MapError::Unsupported("facts about VMDK images")),
        // These formats have no facts of their own. QEMU prints no block size for a fixed disk (`vpc_co_get_info`).
        ImageFormat::Raw | ImageFormat::Vpc | ImageFormat::Vhdx => {
            let disk = Disk::open_alone(format, storage)?;
            info.virtual_size = disk.virtual_size_bytes();
            info.cluster_size = disk.block_bytes();
            info.dirty_flag = Some(false);
        }
    }
    Ok(info)
}

/// Returns the record of the file that an image lies in.
fn file_info<S: Storage + ?Sized>(filename: Text, storage: &S) -> Result<InfoRecord, MapError> {
    Ok(InfoRecord {
        virtual_size: whole_sectors(storage)?,
        filename,
        format: "file",
        actual_size: storage.allocated_bytes(),
        format_specific: Some(FormatSpecific { kind: "file", data: Details::default() }),
        dirty_flag: Some(false),
        ..InfoRecord::default()
    })
}

/// Returns the length of a file as QEMU sees it: that of a raw disk.
fn whole_sectors<S: Storage + ?Sized>(storage: &S) -> Result<u64, MapError> {
    Ok(Disk::open_alone(ImageFormat::Raw, storage)?.virtual_size_bytes())
}
