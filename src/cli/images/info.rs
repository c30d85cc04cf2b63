//! `info`: prints the facts about an image that do not depend on other files.

pub mod record;

use std::path::{Path, PathBuf};

use crate::cli::output::{CommandError, Exit, ExitResult, json_of_qemu_img, print_with};
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Layer, Storage};
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap::{ListedBitmap, bitmap_list};
use crate::formats::qcow2::constants::{
    AUTOCLEAR_RAW_DATA_FILE, BITMAP_AUTO, BITMAP_IN_USE, COMPATIBLE_LAZY_REFCOUNTS,
    INCOMPATIBLE_CORRUPT, INCOMPATIBLE_DIRTY,
};
use crate::formats::qcow2::geometry::{Compression, Geometry, Version};
use crate::formats::qcow2::head::{Field, Head};
use crate::formats::qcow2::snapshot::{SnapshotEntry, each_entry, extra_of};
use crate::walkers::{Disk, ExtentFacts, ExtentsFacts, extents_facts};

use super::map::Form;
use super::{ImageFile, malformed};

use record::{Child, Detail, Details, FormatSpecific, InfoRecord, SnapshotInfo, Text};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command opens no backing file and no data file. It opens the files of the extents that an image \
names: only regular files, no protocols. Use --no-follow for an image that you do not trust: it could name any \
file on this machine. IMAGE is always the name of a file, even if it begins like a protocol ('nbd:').

The human format prints the dates of snapshots in UTC; qemu-img prints them in local time.

Exit codes (those of 'qemu-img info'): 0 the facts were printed; 1 the image could not be opened.

Example: qcowfuzz info --output json disk.qcow2")]
pub(crate) struct Arguments {
    /// The image: a file or a block device
    image: PathBuf,
    /// The format of the image, by its name in qemu-img, such as qcow2 or raw [default: by its first bytes, as in
    /// qemu-img]
    #[arg(short, long, value_name = "FMT")]
    format: Option<String>,
    /// The output format
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    /// Do not open files that the image names; refuse an image whose extents are other files
    #[arg(long)]
    no_follow: bool,
}

/// Prints the record of the image.
pub(crate) fn run(arguments: &Arguments) -> ExitResult {
    info(arguments).map_err(CommandError::with_exit_code_of_qemu_img)
}

fn info(arguments: &Arguments) -> ExitResult {
    let Arguments { image, format, no_follow, .. } = arguments;
    let info = record_of_file(image, format.as_deref(), *no_follow)?;
    print_with(|out| match arguments.output {
        Form::Human => info.print(out),
        Form::Json => json_of_qemu_img(&info, out),
    })?;
    Ok(Exit::Nothing)
}

/// Returns the record of the image at `path`. `format` is the value of `-f`; `no_follow` refuses an image whose extents
/// are other files.
pub fn record_of_file(
    path: &Path,
    format: Option<&str>,
    no_follow: bool,
) -> Result<InfoRecord, CommandError> {
    let file = ImageFile::open(path, format, no_follow)?;
    // The names of QEMU's drivers.
    let protocol = if file.storage.is_block_device() { "host_device" } else { FILE };
    let record = record_of(path, file.format, protocol, &file.layer());
    let record = record.map_err(|error| malformed(path, &file.storage, &error))?;
    file.warn_of_parent(path);
    Ok(record)
}

/// Returns the record of the image in `layer`, which is of `format`, and has the files of its extents. `path` is only
/// its name, and `protocol` the driver of its file (QEMU `block/qapi.c`, `bdrv_query_block_graph_info`).
fn record_of<S: Storage + ?Sized>(
    path: &Path,
    format: ImageFormat,
    protocol: &'static str,
    layer: &Layer<S>,
) -> Result<InfoRecord, MapError> {
    let (filename, storage) = (Text::of_path(path), layer.image);
    let actual_size = storage.allocated_bytes();
    let children = vec![Child::file("file".to_string(), filename.clone(), protocol, storage)?];
    let format_name = format.name();
    let mut info = InfoRecord {
        children,
        filename,
        actual_size,
        format: format_name,
        ..InfoRecord::default()
    };
    match format {
        ImageFormat::Qcow2 => describe_qcow2(&mut info, storage)?,
        _ if format.facts().has_extents => describe_extents(&mut info, layer)?,
        // These formats have no facts of their own. QEMU prints no block size for a fixed disk.
        _ => {
            let disk = Disk::open_alone(format, storage)?;
            info.virtual_size = disk.virtual_size_bytes();
            info.cluster_size = disk.block_bytes();
            info.dirty_flag = Some(false);
        }
    }
    Ok(info)
}

/// QEMU's driver for regular files.
const FILE: &str = "file";

impl Child {
    /// Returns the node of a file that an image, or a part of it, lies in.
    fn file<S: Storage + ?Sized>(
        name: String,
        filename: Text,
        protocol: &'static str,
        storage: &S,
    ) -> Result<Self, MapError> {
        let info = InfoRecord {
            virtual_size: whole_sectors(storage)?,
            filename,
            format: protocol,
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

/// The bytes of a snapshot's id and of its name that QEMU prints (`QEMUSnapshotInfo`).
const PRINTED_ID_BYTES: u16 = 127;
const PRINTED_NAME_BYTES: u16 = 255;

/// Fills in the facts about the image (QEMU `block/qcow2.c`, `qcow2_get_info`, `qcow2_get_specific_info`). Opens
/// neither the backing file nor the data file.
fn describe_qcow2<S: Storage + ?Sized>(info: &mut InfoRecord, image: &S) -> Result<(), MapError> {
    let head = Head::read(image)?;
    // The snapshot table takes at most 64 MiB.
    each_entry(image, &head.header, |_, at, entry| {
        info.snapshots.push(snapshot(image, at, entry)?);
        Ok(())
    })?;
    let bitmaps = bitmap_list(image, &head.header, head.bitmaps.as_ref())?;
    let header = &head.header;
    info.virtual_size = header.virtual_size_bytes();
    info.cluster_size = Some(header.geometry.cluster_size.bytes());
    info.dirty_flag = Some(header.incompatible & INCOMPATIBLE_DIRTY != 0);
    let format = text_in(image, head.backing_format)?.filter(|format| !format.bytes().is_empty());
    if let Some(name) = text_in(image, head.backing_name)? {
        info.set_backing_file(name, format);
    }
    let data = match header.geometry.version {
        Version::V2 => version_2(&header.geometry),
        Version::V3 => version_3(&head, bitmaps, text_in(image, head.data_file)?),
    };
    info.format_specific = Some(FormatSpecific { kind: info.format, data });
    Ok(())
}

fn word(word: &str) -> Detail {
    Detail::Text(Text::new(word.as_bytes()))
}

fn compression(geometry: &Geometry) -> Detail {
    word(match geometry.compression {
        Compression::Deflate => "zlib",
        Compression::Zstd => "zstd",
    })
}

fn refcount_bits(geometry: &Geometry) -> Detail {
    // The order is at most 6.
    Detail::Number(1 << geometry.refcount_order)
}

fn version_2(geometry: &Geometry) -> Details {
    Details(vec![
        ("compat", word("0.10")),
        ("compression-type", compression(geometry)),
        ("refcount-bits", refcount_bits(geometry)),
    ])
}

fn version_3(head: &Head, bitmaps: Vec<ListedBitmap>, data_file: Option<Text>) -> Details {
    let header = &head.header;
    let geometry = &header.geometry;
    let lazy_refcounts = header.compatible & COMPATIBLE_LAZY_REFCOUNTS != 0;
    let mut details = vec![
        ("compat", word("1.1")),
        ("compression-type", compression(geometry)),
        ("lazy-refcounts", Detail::Flag(lazy_refcounts)),
    ];
    if !bitmaps.is_empty() {
        let bitmaps = bitmaps.into_iter().map(bitmap).collect();
        details.push(("bitmaps", Detail::List(bitmaps)));
    }
    details.push(("refcount-bits", refcount_bits(geometry)));
    // QEMU prints the file name in the data file extension even if the feature bit for data files is clear.
    if let Some(name) = data_file {
        details.push(("data-file", Detail::Text(name)));
    }
    if geometry.data_file {
        let raw = header.autoclear & AUTOCLEAR_RAW_DATA_FILE != 0;
        details.push(("data-file-raw", Detail::Flag(raw)));
    }
    let corrupt = header.incompatible & INCOMPATIBLE_CORRUPT != 0;
    details.push(("corrupt", Detail::Flag(corrupt)));
    details.push(("extended-l2", Detail::Flag(geometry.extended_l2)));
    Details(details)
}

fn bitmap(ListedBitmap { name, flags, granularity_bits }: ListedBitmap) -> Detail {
    let named = [(BITMAP_IN_USE, "in-use"), (BITMAP_AUTO, "auto")];
    let set = named.into_iter().filter(|(bit, _)| flags & bit != 0);
    Detail::Group(Details(vec![
        ("flags", Detail::List(set.map(|(_, name)| word(name)).collect())),
        ("name", Detail::Text(Text::new(&name))),
        // The list has only granularities of at most 31 bits.
        ("granularity", Detail::Number(1 << granularity_bits)),
    ]))
}

/// Reads a name in the first cluster.
fn text_in<S: Storage + ?Sized>(image: &S, field: Option<Field>) -> Result<Option<Text>, MapError> {
    field.map(|field| text_at(image, field.offset, field.length_bytes)).transpose()
}

/// Reads a name. It ends before its first zero byte.
pub(super) fn text_at<S: Storage + ?Sized>(
    image: &S,
    at: HostOffset,
    length_bytes: u32,
) -> Result<Text, MapError> {
    let length = usize::try_from(length_bytes);
    let mut bytes = vec![0; length.map_err(|_| MapError::TooLarge("a name"))?];
    image.read_at(at, &mut bytes)?;
    Ok(Text::new(&bytes))
}

fn snapshot<S: Storage + ?Sized>(
    image: &S,
    at: HostOffset,
    entry: &SnapshotEntry,
) -> Result<SnapshotInfo, MapError> {
    let extra = extra_of(image, at, entry)?;
    let vm_state_bytes = extra.vm_state_bytes.unwrap_or(entry.vm_state_bytes.into());
    let [id_at, name_at] = entry.strings_at(at);
    let second = 1_000_000_000;
    Ok(SnapshotInfo {
        // The largest number means that there is none.
        icount: extra.instructions.map(u64::cast_signed).filter(|count| *count != -1),
        vm_clock_nsec: entry.vm_clock_nanoseconds % second,
        name: text_at(image, name_at, entry.name_bytes.min(PRINTED_NAME_BYTES).into())?,
        date_sec: entry.date_seconds,
        date_nsec: entry.date_nanoseconds,
        vm_clock_sec: entry.vm_clock_nanoseconds / second,
        id: text_at(image, id_at, entry.id_bytes.min(PRINTED_ID_BYTES).into())?,
        vm_state_size: vm_state_bytes.cast_signed(),
    })
}

/// Fills in the facts about an image with extents, as QEMU prints them. `layer` has their files; the image below is not
/// read.
fn describe_extents<S: Storage + ?Sized>(
    info: &mut InfoRecord,
    layer: &Layer<'_, S>,
) -> Result<(), MapError> {
    let ExtentsFacts { identity, size_bytes, create_type, extents } = extents_facts(layer)?;
    // qemu-img aborts here.
    let Some(first) = extents.first() else {
        let what = "the descriptor names no extent";
        return Err(MapError::NotImage { format: info.format, what });
    };
    info.virtual_size = size_bytes;
    // QEMU prints neither the grain nor the flag if the extents differ.
    if extents.iter().all(|extent| extent.unit == first.unit) {
        info.cluster_size = first.unit.grain_bytes.filter(|bytes| *bytes != 0);
        info.dirty_flag = Some(false);
    }
    if let Some(name) = &identity.parent_name {
        info.set_backing_file(Text::new(name), Some(Text::new(info.format.as_bytes())));
    }
    add_files(info, &extents, layer)?;
    let extents = extents.iter().map(|extent| details_of(extent, &info.filename)).collect();
    let data = Details(vec![
        ("cid", Detail::Number(identity.content.into())),
        ("parent-cid", Detail::Number(identity.parent_content.into())),
        ("create-type", Detail::Text(Text::new(create_type.as_bytes()))),
        ("extents", Detail::List(extents)),
    ]);
    info.format_specific = Some(FormatSpecific { kind: info.format, data });
    Ok(())
}

/// Adds the files of the extents: the last one first, before the image itself, as QEMU lists them. A file counts once
/// for each extent.
fn add_files<S: Storage + ?Sized>(
    info: &mut InfoRecord,
    extents: &[ExtentFacts],
    layer: &Layer<'_, S>,
) -> Result<(), MapError> {
    let mut children = Vec::new();
    for (index, (extent, file)) in extents.iter().zip(layer.extents).enumerate() {
        let filename = filename_of(extent, &info.filename);
        let child = Child::file(format!("extents.{index}"), filename, FILE, &**file)?;
        let sizes = info.actual_size.zip(child.info.actual_size);
        info.actual_size = sizes.and_then(|(sum, size)| sum.checked_add(size));
        children.push(child);
    }
    info.children.splice(0..0, children.into_iter().rev());
    Ok(())
}

/// Returns the facts about an extent of the image that is called `image`.
fn details_of(extent: &ExtentFacts, image: &Text) -> Detail {
    let mut details = Vec::new();
    if extent.unit.is_compressed {
        details.push(("compressed", Detail::Flag(true)));
    }
    details.push(("virtual-size", Detail::Number(extent.length_bytes)));
    details.push(("filename", Detail::Text(filename_of(extent, image))));
    if let Some(bytes) = extent.unit.grain_bytes {
        details.push(("cluster-size", Detail::Number(bytes)));
    }
    // An image that is an extent itself has no line, and QEMU prints an empty text.
    let kind = extent.line.as_ref().map_or("", |line| line.kind_name);
    details.push(("format", Detail::Text(Text::new(kind.as_bytes()))));
    Detail::Group(Details(details))
}

/// Returns the name of the file of an extent.
fn filename_of(extent: &ExtentFacts, image: &Text) -> Text {
    match &extent.line {
        Some(line) => Text::new(&line.name).resolved_against(image),
        None => image.clone(),
    }
}
