//! The fields and entries of an image, with their values and the meaning of their bits in words.

use std::fmt;
use std::ops::Range;

use serde::{Serialize, Serializer};

use crate::base::limits::MAX_EXPLAINED_ENTRIES;
use crate::disk::clusters::SUBCLUSTERS;
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::formats;
use crate::formats::Tables as GrainTables;
use crate::formats::anatomy::{Anatomy, ByteOrder, Element, Part, feature_names, with_reserved};
use crate::formats::qcow2::constants::{COPIED, OFFSET_MASK};
use crate::formats::qcow2::entry;
use crate::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry, SubclusterBitmap};
use crate::formats::qcow2::geometry::Geometry;
use crate::images::files::image::Image;

/// A field or an entry.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedEntry {
    /// The part of the image that contains it.
    #[serde(serialize_with = "serialise_part")]
    pub part: Part,
    /// The name of a field in the specification; empty for an entry.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: &'static str,
    /// The host offset of its first byte.
    #[serde(rename = "offset", serialize_with = "serialise_offset")]
    pub at: HostOffset,
    /// Its width in bytes: 1, 2, 4 or 8.
    #[serde(rename = "width")]
    pub width_bytes: u8,
    /// The order of its bytes.
    #[serde(skip)]
    pub order: ByteOrder,
    /// The guest range that it maps: empty if it maps nothing, the whole disk if it affects all of it.
    #[serde(skip)]
    pub guest: Range<u64>,
    /// The value that the build wrote.
    pub value: EntryValue,
    /// The value that a hostile program wrote over it.
    #[serde(flatten)]
    pub damaged: Option<DamagedValue>,
    /// The meaning of the value's bits.
    pub spelled: String,
    /// The last operation that changed the guest range that it maps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<usize>,
    /// True if the walker reads it.
    pub read: bool,
}

/// The value of a field or an entry. It prints as hexadecimal digits, as many as the field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryValue {
    /// The value.
    pub value: u64,
    width_bytes: u8,
}

/// The value that a hostile program wrote.
#[derive(Clone, Debug, Serialize)]
pub struct DamagedValue {
    /// The value.
    #[serde(rename = "damaged")]
    pub value: EntryValue,
    /// The meaning of its bits.
    #[serde(rename = "damaged_spelled")]
    pub spelled: String,
}

impl fmt::Display for EntryValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, width_bytes } = self;
        write!(f, "{value:0width$x}", width = usize::from(*width_bytes) * 2)
    }
}

impl Serialize for EntryValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn serialise_part<S: Serializer>(part: &Part, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(part.name())
}

fn serialise_offset<S: Serializer>(offset: &HostOffset, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(offset.get())
}

impl ExplainedEntry {
    /// Records the value that the entry has now, if it is another one.
    pub(super) fn note_damage(&mut self, image: &Image, facts: &ImageFacts) {
        let value = value_at(image, self.at, self.width_bytes, self.order);
        let spelled = || spelled(self.part, self.name, value.value, facts);
        self.damaged = (value != self.value).then(|| DamagedValue { value, spelled: spelled() });
    }
}

fn value_at(image: &Image, at: HostOffset, width_bytes: u8, order: ByteOrder) -> EntryValue {
    let value = order.in_order(image.number(at, width_bytes), width_bytes);
    EntryValue { value, width_bytes }
}

/// Returns the entries of an image, part by part, at most [`MAX_EXPLAINED_ENTRIES`].
pub(super) fn of(
    image: &Image,
    anatomy: &Anatomy,
    facts: &ImageFacts,
    operation: impl Fn(&Range<u64>) -> Option<usize>,
) -> Vec<ExplainedEntry> {
    let entry = |element: &Element| {
        let Element { part, name, at, width_bytes, order, .. } = *element;
        let value = value_at(image, at, width_bytes, order);
        ExplainedEntry {
            part,
            name,
            at,
            width_bytes,
            order,
            guest: element.guest.clone(),
            value,
            damaged: None,
            spelled: spelled(part, name, value.value, facts),
            operation: operation(&element.guest),
            read: false,
        }
    };
    anatomy.elements().take(MAX_EXPLAINED_ENTRIES).map(entry).collect()
}

/// Names of the header's feature bits, from bit 0 on (specification, "Header").
const FEATURE_BITS: [(&str, &[&str]); 3] = [
    (
        "incompatible_features",
        &["dirty", "corrupt", "external data file", "compression type", "extended L2"],
    ),
    ("compatible_features", &["lazy refcounts"]),
    ("autoclear_features", &["bitmaps", "raw external data"]),
];

/// The facts about an image that give its fields and entries their meaning.
#[derive(Clone, Copy, Debug)]
pub struct ImageFacts {
    /// The format.
    pub format: ImageFormat,
    /// The geometry of a qcow2 image; `None` without a valid header.
    pub geometry: Option<Geometry>,
    /// The tables of an extent of grains; `None` without a valid header.
    pub grain_tables: Option<GrainTables>,
}

impl ImageFacts {
    /// Returns the facts about a file that is not a qcow2 image.
    pub(super) fn of_other(format: ImageFormat, anatomy: &Anatomy) -> Self {
        Self { format, geometry: None, grain_tables: anatomy.grain_tables().copied() }
    }
}

/// Returns the meaning of a field or an entry in words.
fn spelled(part: Part, name: &str, value: u64, facts: &ImageFacts) -> String {
    match facts.format {
        ImageFormat::Qcow2 => qcow2(part, name, value, facts.geometry.as_ref()),
        format => formats::spelled(format, part, name, value, facts.grain_tables.as_ref()),
    }
}

/// Returns the meaning of a field or an entry of a qcow2 image. Without a `geometry`, entries of L2 tables have none.
fn qcow2(part: Part, name: &str, value: u64, geometry: Option<&Geometry>) -> String {
    match part {
        Part::L1 | Part::SnapshotTable => match L1Entry(value).table() {
            Some(table) => {
                let entry = format!("{}table at {table:#x}", flag(value, COPIED, "COPIED, "));
                with_reserved(entry, value & !(COPIED | OFFSET_MASK))
            }
            None => with_reserved("no table".to_string(), value & !COPIED),
        },
        Part::L2 => geometry.map_or(String::new(), |geometry| l2(value, geometry)),
        Part::Bitmap => {
            let bitmap = SubclusterBitmap(value);
            let [allocated, zero] = [bitmap.allocated(), bitmap.zero()].map(bits);
            format!("allocated: {allocated}; zero: {zero}")
        }
        Part::RefcountTable => match entry::refcount_block_offset(value) {
            Some(block) => format!("block at {block:#x}"),
            None => "no block".to_string(),
        },
        Part::BitmapTable => match (value & OFFSET_MASK, value & 1) {
            (0, 1) => "all ones".to_string(),
            (0, _) => "all zeros".to_string(),
            (at, _) => format!("bits at {at:#x}"),
        },
        Part::Header => match FEATURE_BITS.iter().find(|(field, _)| *field == name) {
            Some((_, names)) => feature_names(value, names),
            None => value.to_string(),
        },
        _ => value.to_string(),
    }
}

fn l2(value: u64, geometry: &Geometry) -> String {
    let copied = flag(value, COPIED, "COPIED, ");
    let entry = match L2Entry(value).kind(geometry) {
        Ok(ClusterKind::Unallocated) => "unallocated".to_string(),
        Ok(ClusterKind::ZeroPlain) => "zero".to_string(),
        Ok(ClusterKind::ZeroAllocated(host)) => format!("{copied}zero, allocated at {host:#x}"),
        Ok(ClusterKind::Normal(host)) => format!("{copied}normal at {host:#x}"),
        Ok(ClusterKind::Subclusters(host)) => format!("{copied}subclusters at {host:#x}"),
        Ok(ClusterKind::UnallocatedSubclusters) => "subclusters, not allocated".to_string(),
        Ok(ClusterKind::Compressed(run)) => {
            let (at, sectors) = (run.offset, run.additional_sectors);
            return format!("{copied}compressed at {at:#x}, {sectors} sectors more");
        }
        Err(fault) => return fault.to_string(),
    };
    let zero = u64::from(!geometry.extended_l2);
    with_reserved(entry, value & !(COPIED | OFFSET_MASK | zero))
}

fn flag(value: u64, bit: u64, name: &'static str) -> &'static str {
    if value & bit != 0 { name } else { "" }
}

/// Returns the numbers of the bits that are set, as ranges.
fn bits(word: u32) -> String {
    let set = |bit: &u32| word & 1 << bit != 0;
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(first) = (at..SUBCLUSTERS).find(set) {
        let last = (first..SUBCLUSTERS).take_while(set).last().unwrap_or(first);
        ranges.push(if first == last { first.to_string() } else { format!("{first}–{last}") });
        at = last + 1;
    }
    if ranges.is_empty() { "none".to_string() } else { ranges.join(", ") }
}
