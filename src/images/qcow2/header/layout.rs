//! The layout of the first cluster: the header extensions with their kinds, lengths and bytes, and the parts that do
//! not fit.

use bytes::BufMut;

use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{
    BITMAPS_EXTENSION_BYTES, EXTENSION_BACKING_FORMAT, EXTENSION_BITMAPS, EXTENSION_DATA_FILE,
    EXTENSION_FEATURE_NAMES, V2_LENGTH_BYTES, V3_COMPRESSION_LENGTH_BYTES, V3_LENGTH_BYTES,
};
use crate::formats::qcow2::geometry::{Compression, Version};
use crate::images::files::image::Image;
use crate::images::qcow2::encoding::Directory;
use crate::images::qcow2::plan::{
    HeaderFlags, HeaderLength, HeaderStyle, ImagePlan, Names, NamesTooLong,
};

/// The largest number of extensions in an image: one of each kind, the unknown ones, and a filler.
const MAX_EXTENSIONS: usize = 16;

/// The longest name of a backing file, in bytes.
const MAX_NAME_BYTES: u64 = 1023;

/// Types of unknown extensions. Most of them are next to a known type. The first is the type of the extension of the
/// prologue.
const UNKNOWN_KINDS: [u32; 1 + HeaderStyle::MAX_UNKNOWN as usize] = [
    0x7143_6675,
    0x0000_0001,
    0xFFFF_FFFF,
    0xE279_2ACB,
    0x6803_F856,
    0x4441_5442,
    0x0537_BE78,
    0x2385_2874,
];

/// The length of the prologue's unknown extension.
const PROLOGUE_UNKNOWN_BYTES: u32 = 13;

/// The layout of the first cluster.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeaderLayout {
    /// The length of the fixed part.
    pub(super) header_bytes: u32,
    /// The extensions in the order of the file; the first `count` are used.
    extensions: [Option<Extension>; MAX_EXTENSIONS],
    count: usize,
    /// An extension marks the end.
    pub(super) end: bool,
    /// The offset of the backing file's name; 0 without a name.
    pub(super) name_offset: u64,
    /// The length of the name.
    pub(super) name_bytes: u64,
}

/// The requested layout, which may be cut.
struct RequestedLayout {
    cluster_bytes: u64,
    header_bytes: u64,
    shortest_bytes: u64,
    /// There is a name, which may have no bytes.
    named: bool,
    name_bytes: u64,
    name_at_end: bool,
    end: bool,
}

impl HeaderLayout {
    /// Returns the layout for `plan`, `bitmaps` and `names`, cut to the room in the first cluster.
    ///
    /// # Errors
    /// The names do not fit.
    pub(super) fn new(
        plan: &ImagePlan,
        bitmaps: Option<Directory>,
        names: &Names,
    ) -> Result<Self, NamesTooLong> {
        let mut layout = Self::default();
        let mut wanted = RequestedLayout::new(plan, names);
        layout.list(plan, bitmaps, names);
        while layout.room(&wanted).is_none() {
            if !layout.leave_out() && !wanted.cut(layout.extension_bytes()) {
                return Err(wanted.too_long(layout.extension_bytes()));
            }
        }
        layout.permute(plan.style.map_or(0, |style| style.order));
        layout.header_bytes = wanted.header_bytes as u32;
        layout.end = wanted.end;
        let behind = wanted.header_bytes + layout.extension_bytes();
        if wanted.named {
            layout.name_bytes = wanted.name_bytes;
            layout.name_offset = match wanted.name_at_end {
                true => wanted.cluster_bytes - wanted.name_bytes,
                false => behind + if wanted.end { 8 } else { 0 },
            };
        }
        let left = layout.room(&wanted).unwrap_or(0);
        if left == 0 && (wanted.name_at_end || !wanted.named) {
            // The extensions fill the area exactly.
            layout.end = false;
        } else if !wanted.end && left >= 8 {
            layout.add(Extension::Filler((left - 8) as u32));
        }
        Ok(layout)
    }

    /// Returns the extensions, in order.
    pub(super) fn extensions(&self) -> impl Iterator<Item = Extension> {
        self.extensions[..self.count].iter().copied().flatten()
    }

    /// Collects the requested extensions. A new extension needs one more line here, and a variant of [`Extension`].
    fn list(&mut self, plan: &ImagePlan, bitmaps: Option<Directory>, names: &Names) {
        let style = plan.style.unwrap_or_default();
        let unknown_names = plan.has(HeaderFlags::UNKNOWN_NAMES);
        if let Some(backing) = plan.backing.filter(|_| plan.names_backing_format()) {
            self.add(Extension::BackingFormat(backing.format));
        }
        if plan.data_file.is_some() {
            let length = u32::try_from(names.data_file.len()).unwrap_or(u32::MAX);
            self.add(Extension::DataFile(length));
        }
        if let Some(bitmaps) = bitmaps {
            self.add(Extension::Bitmaps(bitmaps));
        }
        if plan.header.feature_names || unknown_names || plan.has(HeaderFlags::FEATURE_NAMES) {
            self.add(Extension::FeatureNames { unknown: unknown_names });
        }
        let (first, others) = UNKNOWN_KINDS.split_at(1);
        if plan.header.unknown_extension {
            let length_bytes = PROLOGUE_UNKNOWN_BYTES;
            self.add(Extension::Unknown { kind: first[0], length_bytes });
        }
        let count = usize::from(style.unknown.min(HeaderStyle::MAX_UNKNOWN));
        for (kind, number) in others[..count].iter().zip(0u8..) {
            if let Some(body) = plan.extension_body.filter(|_| number == 0) {
                self.add(Extension::Given { kind: *kind, length_bytes: body.length_bytes() });
                continue;
            }
            let length = style.unknown_bytes.wrapping_add(number.wrapping_mul(11));
            self.add(Extension::Unknown { kind: *kind, length_bytes: u32::from(length) });
        }
    }

    fn add(&mut self, extension: Extension) {
        debug_assert!(self.count < MAX_EXTENSIONS);
        if let Some(place) = self.extensions.get_mut(self.count) {
            *place = Some(extension);
            self.count += 1;
        }
    }

    fn extension_bytes(&self) -> u64 {
        self.extensions().map(Extension::whole_bytes).sum()
    }

    /// Removes or shortens the last optional extension. Returns false if there is none.
    fn leave_out(&mut self) -> bool {
        let Some(last) = self.count.checked_sub(1) else { return false };
        match &mut self.extensions[last] {
            Some(Extension::FeatureNames { unknown: unknown @ true }) => *unknown = false,
            Some(extension) if extension.is_optional() => self.count = last,
            _ => return false,
        }
        true
    }

    /// Orders the extensions by the digits of `code`: each digit chooses the next one among the rest.
    fn permute(&mut self, code: u8) {
        let mut code = usize::from(code);
        for at in 0..self.count {
            let left = self.count - at;
            self.extensions[at..self.count][..=code % left].rotate_right(1);
            code /= left;
        }
    }

    /// Returns the number of unused bytes in the extension area, or `None` if not everything fits. The area must be
    /// full or have room for the type and the length of another extension, because readers look for the next
    /// extension until the area ends.
    fn room(&self, wanted: &RequestedLayout) -> Option<u64> {
        let behind = wanted.header_bytes + self.extension_bytes();
        if wanted.named && !wanted.name_at_end {
            let name = behind + if wanted.end { 8 } else { 0 };
            let fits = name + wanted.name_bytes <= wanted.cluster_bytes;
            return (fits && wanted.name_bytes <= MAX_NAME_BYTES).then_some(0);
        }
        let area_end = wanted.cluster_bytes.checked_sub(wanted.name_bytes)?;
        let left = area_end.checked_sub(behind)?;
        (wanted.name_bytes <= MAX_NAME_BYTES && (left == 0 || left >= 8)).then_some(left)
    }
}

/// The lengths of the fixed part of a header.
pub struct HeaderLengths {
    /// The shortest length that the fields allow.
    shortest_bytes: u64,
    /// The length that the program requests. The build shortens it if there is no room.
    pub requested_bytes: u64,
}

impl HeaderLengths {
    /// Returns the lengths that a plan allows and requests.
    pub fn of(plan: &ImagePlan) -> Self {
        let cluster_bytes = plan.geometry.cluster_size.bytes();
        let zstd = plan.geometry.compression == Compression::Zstd;
        let (shortest, usual) = match plan.geometry.version {
            Version::V2 => (V2_LENGTH_BYTES, V2_LENGTH_BYTES),
            // The header has a compression type if it is longer than the fields before it.
            Version::V3 if zstd => (V3_LENGTH_BYTES + 1, V3_COMPRESSION_LENGTH_BYTES),
            Version::V3 if plan.header.compression_field => {
                (V3_LENGTH_BYTES, V3_COMPRESSION_LENGTH_BYTES)
            }
            Version::V3 => (V3_LENGTH_BYTES, V3_LENGTH_BYTES),
        };
        let shortest_bytes = u64::from(shortest);
        let longer = cluster_bytes - u64::from(V3_LENGTH_BYTES) + 1;
        let length_bytes = match plan.style.unwrap_or_default().length {
            _ if plan.geometry.version == Version::V2 => shortest_bytes,
            HeaderLength::Shortest => u64::from(usual),
            HeaderLength::Above(steps) => u64::from(V3_LENGTH_BYTES) + u64::from(steps) % longer,
            HeaderLength::Below(steps) => cluster_bytes - u64::from(steps) % longer,
        };
        Self { shortest_bytes, requested_bytes: length_bytes.max(shortest_bytes) }
    }
}

impl RequestedLayout {
    fn new(plan: &ImagePlan, names: &Names) -> Self {
        let HeaderLengths { shortest_bytes, requested_bytes } = HeaderLengths::of(plan);
        let backing = plan.backing.is_some() && !names.backing.is_empty();
        Self {
            cluster_bytes: plan.geometry.cluster_size.bytes(),
            header_bytes: requested_bytes,
            shortest_bytes,
            named: backing || plan.has(HeaderFlags::EMPTY_NAME),
            name_bytes: if backing { names.backing.len() as u64 } else { 0 },
            name_at_end: plan.has(HeaderFlags::NAME_AT_END),
            end: !plan.has(HeaderFlags::NO_END),
        }
    }

    /// Shortens the header as far as necessary, or moves the name right after the extensions without an end mark.
    /// Returns false if neither helps.
    fn cut(&mut self, extension_bytes: u64) -> bool {
        let end = if self.named && !self.name_at_end && !self.end { 0 } else { 8 };
        let fitting = self.cluster_bytes.saturating_sub(self.name_bytes + extension_bytes + end);
        if self.header_bytes > self.shortest_bytes {
            self.header_bytes = fitting.clamp(self.shortest_bytes, self.header_bytes - 1);
            return true;
        }
        let tight = self.named && (self.name_at_end || self.end);
        if tight {
            (self.name_at_end, self.end) = (false, false);
        }
        tight
    }

    fn too_long(&self, extension_bytes: u64) -> NamesTooLong {
        match self.name_bytes > MAX_NAME_BYTES {
            true => NamesTooLong::Backing { length_bytes: self.name_bytes },
            false => NamesTooLong::Header {
                needed_bytes: self.name_bytes + extension_bytes,
                room_bytes: self.cluster_bytes - self.shortest_bytes,
            },
        }
    }
}

/// An extension. In a layout's list, the extensions that a reader needs come first; the others may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extension {
    /// The format of the backing file.
    BackingFormat(ImageFormat),
    /// The name of the external data file, and its length.
    DataFile(u32),
    /// The location of the bitmap directory.
    Bitmaps(Directory),
    /// The feature name table, with or without unknown features.
    FeatureNames { unknown: bool },
    /// An unknown extension.
    Unknown { kind: u32, length_bytes: u32 },
    /// An unknown extension with a body that the program gives.
    Given { kind: u32, length_bytes: u16 },
    /// An unknown extension that ends at the end of the extension area, without padding.
    Filler(u32),
}

/// The type of the extension that fills the rest of the area.
const FILLER_KIND: u32 = 0x7143_6676;

/// A row of a feature name table: the field, the bit, the name.
type FeatureName = (u8, u8, &'static str);

/// Features that every reader knows.
const KNOWN: [FeatureName; 3] =
    [(0, 0, "dirty bit"), (0, 1, "corrupt bit"), (1, 0, "lazy refcounts")];

/// Unknown features: the last bit, a name of full length (without a zero at its end), an empty name, and a field that
/// does not exist.
const UNKNOWN: [FeatureName; 5] = [
    (0, 63, "the last incompatible feature"),
    (1, 40, "its name has all of the forty-six bytes it may"),
    (2, 2, "cleared by itself"),
    (1, 62, ""),
    (7, 200, "of no field at all"),
];

const ROW_BYTES: usize = 48;

/// The number of bytes of a filler that are not zero, at most. A filler may be nearly as long as a cluster of 2 MiB.
const FILLED_BYTES: usize = 24;

impl Extension {
    /// Reports whether an image without this extension has the same meaning.
    pub(super) fn is_optional(self) -> bool {
        matches!(self, Self::FeatureNames { .. } | Self::Unknown { .. } | Self::Given { .. })
    }

    /// Returns the type, if the program gives the body.
    pub(super) fn given_kind(self) -> Option<u32> {
        match self {
            Self::Given { kind, .. } => Some(kind),
            _ => None,
        }
    }

    fn kind(self) -> u32 {
        match self {
            Self::BackingFormat(_) => EXTENSION_BACKING_FORMAT,
            Self::DataFile(_) => EXTENSION_DATA_FILE,
            Self::Bitmaps(_) => EXTENSION_BITMAPS,
            Self::FeatureNames { .. } => EXTENSION_FEATURE_NAMES,
            Self::Unknown { kind, .. } | Self::Given { kind, .. } => kind,
            Self::Filler(_) => FILLER_KIND,
        }
    }

    /// Returns the length of the data.
    fn data_bytes(self) -> u32 {
        let rows = |count: usize| (count * ROW_BYTES) as u32;
        match self {
            Self::BackingFormat(format) => format.name().len() as u32,
            Self::Bitmaps(_) => BITMAPS_EXTENSION_BYTES as u32,
            Self::DataFile(length_bytes)
            | Self::Unknown { length_bytes, .. }
            | Self::Filler(length_bytes) => length_bytes,
            Self::Given { length_bytes, .. } => u32::from(length_bytes),
            Self::FeatureNames { unknown: false } => rows(KNOWN.len()),
            Self::FeatureNames { unknown: true } => rows(KNOWN.len() + UNKNOWN.len()),
        }
    }

    /// Returns the number of bytes that the extension takes in the first cluster.
    pub(super) fn whole_bytes(self) -> u64 {
        8 + u64::from(self.data_bytes()).next_multiple_of(8)
    }

    /// Writes the extension, and returns the offset of the next one. `given` is the body that the program gives. With
    /// `junk`, the padding is not zero.
    pub(super) fn write(
        self,
        image: &mut Image,
        at: HostOffset,
        (names, given): (&Names, &[u8]),
        junk: bool,
    ) -> HostOffset {
        let data_bytes = self.data_bytes() as usize;
        // The rest of a filler is a hole.
        let (written, whole) = match self {
            Self::Filler(_) => (data_bytes.min(FILLED_BYTES), data_bytes.min(FILLED_BYTES)),
            _ => (data_bytes, data_bytes.next_multiple_of(8)),
        };
        let mut out = image.place(at, 8 + whole);
        out.put_u32(self.kind());
        out.put_u32(self.data_bytes());
        let (data, padding) = out.split_at_mut(written);
        self.fill(data, names, given);
        if junk {
            padding.fill(0xC3);
        }
        at + self.whole_bytes()
    }

    fn fill(self, mut out: &mut [u8], names: &Names, given: &[u8]) {
        match self {
            Self::BackingFormat(format) => out.put_slice(format.name().as_bytes()),
            Self::DataFile(_) => out.put_slice(names.data_file),
            Self::Bitmaps(bitmaps) => out.put_slice(&bitmaps.extension()),
            Self::FeatureNames { unknown } => {
                let more = if unknown { UNKNOWN.as_slice() } else { &[] };
                for (mut row, (field, bit, name)) in
                    out.chunks_mut(ROW_BYTES).zip(KNOWN.iter().chain(more))
                {
                    row.put_u8(*field);
                    row.put_u8(*bit);
                    row.put_slice(name.as_bytes());
                }
            }
            Self::Given { .. } => out.put_slice(given),
            Self::Unknown { .. } | Self::Filler(_) => out.fill(0xA5),
        }
    }
}
