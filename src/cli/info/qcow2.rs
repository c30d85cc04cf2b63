//! The facts about a qcow2 image.

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap::{ListedBitmap, bitmap_list};
use crate::formats::qcow2::constants::{
    AUTOCLEAR_RAW_DATA_FILE, BITMAP_AUTO, BITMAP_IN_USE, COMPATIBLE_LAZY_REFCOUNTS,
    INCOMPATIBLE_CORRUPT, INCOMPATIBLE_DIRTY,
};
use crate::formats::qcow2::geometry::{Compression, Geometry, Version};
use crate::formats::qcow2::head::{Field, Head};
use crate::formats::qcow2::snapshot::{SnapshotEntry, each_entry, extra_of};

use super::record::{Detail, Details, FormatSpecific, InfoRecord, SnapshotInfo};
use super::text::Text;

/// The bytes of a snapshot's id and of its name that QEMU prints (`QEMUSnapshotInfo`).
const PRINTED_ID_BYTES: u16 = 127;
const PRINTED_NAME_BYTES: u16 = 255;

/// Fills in the facts about the image (QEMU `block/qcow2.c`, `qcow2_get_info`, `qcow2_get_specific_info`). Opens
/// neither the backing file nor the data file.
///
/// # Errors
/// QEMU refuses the image or its bitmaps, a feature is not supported (encryption), or a read failed.
pub fn describe<S: Storage + ?Sized>(info: &mut InfoRecord, image: &S) -> Result<(), MapError> {
    let head = Head::read(image)?;
    let snapshots = snapshots(image, &head)?;
    let bitmaps = bitmap_list(image, &head.header, head.bitmaps.as_ref())?;
    let header = &head.header;
    info.virtual_size = header.virtual_size_bytes();
    info.cluster_size = Some(header.geometry.cluster_size.bytes());
    info.dirty_flag = Some(header.incompatible & INCOMPATIBLE_DIRTY != 0);
    info.snapshots = snapshots;
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
    // QEMU prints the name of the extension even if the feature bit of the data file is clear.
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

fn text_at<S: Storage + ?Sized>(
    image: &S,
    at: HostOffset,
    length_bytes: u32,
) -> Result<Text, MapError> {
    let length = usize::try_from(length_bytes);
    let mut bytes = vec![0; length.map_err(|_| MapError::TooLarge("a name"))?];
    image.read_at(at, &mut bytes)?;
    Ok(Text::new(&bytes))
}

/// Returns the snapshots. The table takes at most 64 MiB.
fn snapshots<S: Storage + ?Sized>(image: &S, head: &Head) -> Result<Vec<SnapshotInfo>, MapError> {
    let mut snapshots = Vec::new();
    each_entry(image, &head.header, |_, at, entry| {
        snapshots.push(snapshot(image, at, entry)?);
        Ok(())
    })?;
    Ok(snapshots)
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
