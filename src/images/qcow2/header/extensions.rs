//! Header extensions: what they are, how long, and their bytes.

use bytes::BufMut;

use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{
    BITMAPS_EXTENSION_BYTES, EXTENSION_BACKING_FORMAT, EXTENSION_BITMAPS, EXTENSION_DATA_FILE,
    EXTENSION_FEATURE_NAMES,
};
use crate::formats::qcow2::geometry::ImageFormat;
use crate::images::image::Image;
use crate::images::qcow2::encoding::bitmaps::Directory;

use super::names::Names;

/// An extension. What a reader needs comes first in a layout's list; the rest may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extension {
    /// The format of the backing file.
    BackingFormat(ImageFormat),
    /// The name of the external data file, of that many bytes.
    DataFile(u32),
    /// Where the bitmaps' directory lies.
    Bitmaps(Directory),
    /// The feature name table, and whether it has rows of features that nobody knows.
    FeatureNames { unknown: bool },
    /// An extension that no reader knows.
    Unknown { kind: u32, length_bytes: u32 },
    /// One more of those, which ends where the extensions' area does: it is not padded.
    Filler(u32),
}

/// The type of the extension that fills what is left.
const FILLER_KIND: u32 = 0x7143_6676;

/// A feature name table's rows: the field, the bit, the name.
type Row = (u8, u8, &'static str);

/// Features that every reader knows.
const KNOWN: [Row; 3] = [(0, 0, "dirty bit"), (0, 1, "corrupt bit"), (1, 0, "lazy refcounts")];

/// Features that none does: the last bit, a name of full length (which no zero ends), one without a
/// name, a field that does not exist.
const UNKNOWN: [Row; 5] = [
    (0, 63, "the last incompatible feature"),
    (1, 40, "its name has all of the forty-six bytes it may"),
    (2, 2, "cleared by itself"),
    (1, 62, ""),
    (7, 200, "of no field at all"),
];

const ROW_BYTES: usize = 48;

/// How many bytes of a filler are not zero, at most: it may be nearly as long as a cluster of 2 MiB.
const FILLED_BYTES: usize = 24;

impl Extension {
    /// Whether an image says the same without it.
    pub(super) fn is_optional(self) -> bool {
        matches!(self, Self::FeatureNames { .. } | Self::Unknown { .. })
    }

    fn kind(self) -> u32 {
        match self {
            Self::BackingFormat(_) => EXTENSION_BACKING_FORMAT,
            Self::DataFile(_) => EXTENSION_DATA_FILE,
            Self::Bitmaps(_) => EXTENSION_BITMAPS,
            Self::FeatureNames { .. } => EXTENSION_FEATURE_NAMES,
            Self::Unknown { kind, .. } => kind,
            Self::Filler(_) => FILLER_KIND,
        }
    }

    /// How long its data are.
    fn data_bytes(self) -> u32 {
        let rows = |count: usize| (count * ROW_BYTES) as u32;
        match self {
            Self::BackingFormat(format) => format.name().len() as u32,
            Self::Bitmaps(_) => BITMAPS_EXTENSION_BYTES as u32,
            Self::DataFile(length_bytes)
            | Self::Unknown { length_bytes, .. }
            | Self::Filler(length_bytes) => length_bytes,
            Self::FeatureNames { unknown: false } => rows(KNOWN.len()),
            Self::FeatureNames { unknown: true } => rows(KNOWN.len() + UNKNOWN.len()),
        }
    }

    /// How much of the first cluster it takes.
    pub(super) fn whole_bytes(self) -> u64 {
        8 + u64::from(self.data_bytes()).next_multiple_of(8)
    }

    /// Writes it; returns where the next one begins. With `junk` its padding is not zero.
    pub(super) fn write(
        self,
        image: &mut Image,
        at: HostOffset,
        names: &Names,
        junk: bool,
    ) -> HostOffset {
        let data_bytes = self.data_bytes() as usize;
        // What a filler does not begin with is a hole.
        let (written, whole) = match self {
            Self::Filler(_) => (data_bytes.min(FILLED_BYTES), data_bytes.min(FILLED_BYTES)),
            _ => (data_bytes, data_bytes.next_multiple_of(8)),
        };
        let mut out = image.place(at, 8 + whole);
        out.put_u32(self.kind());
        out.put_u32(self.data_bytes());
        let (data, padding) = out.split_at_mut(written);
        self.fill(data, names);
        if junk {
            padding.fill(0xC3);
        }
        at.saturating_add(self.whole_bytes())
    }

    fn fill(self, mut out: &mut [u8], names: &Names) {
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
            Self::Unknown { .. } | Self::Filler(_) => out.fill(0xA5),
        }
    }
}
