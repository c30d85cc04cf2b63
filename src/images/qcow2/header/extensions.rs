//! Header extensions: their kinds, their lengths, and their bytes.

use bytes::BufMut;

use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{
    BITMAPS_EXTENSION_BYTES, EXTENSION_BACKING_FORMAT, EXTENSION_BITMAPS, EXTENSION_DATA_FILE,
    EXTENSION_FEATURE_NAMES,
};
use crate::images::image::Image;
use crate::images::qcow2::encoding::bitmaps::Directory;

use super::names::Names;

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
