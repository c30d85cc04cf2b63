//! Operands of images: the format of the lowest image and its variety, optional features, and options of the header.

use std::fmt;

use bytes::{Buf, BufMut};

use crate::disk::image_format::ImageFormat;
use crate::images::format::file_plan::TableReach;
use crate::images::qcow2::{HeaderFlags, HeaderLength};

use super::encoding::{Operand, OperandKind, operand, parse_bits, print_bits};

/// The lowest image of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Base {
    /// A qcow2 image.
    #[default]
    Qcow2,
    /// If an overlay lies on it: a raw file with the data that a guest reads.
    Raw,
    /// As [`Base::Raw`], but the file has holes where it holds no data.
    SparseRaw,
    /// An image in another format: see [`Base::of`].
    Other(ImageFormat, TableReach),
}

impl Base {
    /// The fold of the first byte. Other values than those that a base has are those of 0.
    const FIRST_FOLD: u8 = 4;
    /// The fold of the second byte, likewise.
    const SECOND_FOLD: u8 = 16;
    /// The second bytes of the formats that programs had before large disks: the first one, and those of the large
    /// disks. A later format has two values in a row, from the first free one on.
    const FIRST_FORMATS: (u8, u8, u8) = (1, 5, 3);
    /// The second byte of a sparse raw file.
    const SPARSE_RAW: u8 = 4;

    /// Returns the base in a format other than qcow2 and raw, for a disk of usual size.
    pub const fn of(format: ImageFormat) -> Self {
        match format {
            ImageFormat::Qcow2 => Self::Qcow2,
            ImageFormat::Raw => Self::Raw,
            _ => Self::Other(format, TableReach::Small),
        }
    }

    /// Returns the base in a format other than qcow2 and raw whose disk may be as large as the format allows, or has a
    /// million blocks.
    pub const fn large(format: ImageFormat) -> Self {
        Self::of(format).with_reach(TableReach::Large)
    }

    /// Returns the formats other than qcow2 and raw, in the order of the list of formats.
    pub fn other_formats() -> impl Iterator<Item = ImageFormat> {
        let has_base =
            |format: &ImageFormat| !matches!(format, ImageFormat::Qcow2 | ImageFormat::Raw);
        ImageFormat::ALL.into_iter().filter(has_base)
    }

    /// Returns all bases.
    pub fn all() -> impl Iterator<Item = Self> {
        let reaches = [TableReach::Small, TableReach::Large];
        let others =
            Self::other_formats().flat_map(move |it| reaches.map(|reach| Self::Other(it, reach)));
        [Self::Qcow2, Self::Raw, Self::SparseRaw].into_iter().chain(others)
    }

    /// Returns the two bytes of the base.
    fn bytes(self) -> [u8; 2] {
        let (small, large, first) = Self::FIRST_FORMATS;
        let at = |format| {
            (0..).zip(Self::other_formats()).find(|(_, it)| *it == format).map_or(0, |it| it.0)
        };
        match self {
            Self::Qcow2 => [0, 0],
            Self::Raw => [1, 0],
            Self::SparseRaw => [0, Self::SPARSE_RAW],
            Self::Other(format, reach) => [
                0,
                match (at(format), reach) {
                    (at, TableReach::Small) if at < first => small + at,
                    (at, TableReach::Large) if at < first => large + at,
                    // Behind all of these.
                    (at, reach) => large + first + 2 * (at - first) + reach as u8,
                },
            ],
        }
    }

    /// Returns the format of the lowest image if an overlay lies on it.
    pub const fn format(self) -> ImageFormat {
        match self {
            Self::Qcow2 => ImageFormat::Qcow2,
            Self::Raw | Self::SparseRaw => ImageFormat::Raw,
            Self::Other(format, _) => format,
        }
    }

    /// Returns the reach of the tables of the lowest image.
    pub const fn reach(self) -> TableReach {
        match self {
            Self::Other(_, reach) => reach,
            _ => TableReach::Small,
        }
    }

    /// Returns the base in the same format with tables of this reach. qcow2 and raw images have only one.
    pub const fn with_reach(self, reach: TableReach) -> Self {
        match self {
            Self::Other(format, _) => Self::Other(format, reach),
            _ => self,
        }
    }

    /// Reports whether the lowest image is built as a qcow2 image. A raw file comes from one.
    pub(crate) fn is_qcow2(self) -> bool {
        self == Self::Qcow2 || self.is_raw()
    }

    /// Reports whether the lowest image becomes a raw file if an overlay lies on it.
    pub(crate) fn is_raw(self) -> bool {
        matches!(self, Self::Raw | Self::SparseRaw)
    }
}

/// The second byte decides if it has a meaning.
impl Operand for Base {
    const BYTES: usize = 2;
    const EXPECTED: &'static str =
        "qcow2, raw, sparse_raw, or the name of another format, perhaps with large_ before it";
    const KIND: OperandKind = OperandKind::Other;

    fn decode(bytes: &mut &[u8]) -> Self {
        let first = bytes.get_u8() % Self::FIRST_FOLD;
        let second = bytes.get_u8() % Self::SECOND_FOLD;
        let with = |wanted| Self::all().find(|base| base.bytes() == wanted);
        with([0, second]).filter(|_| second > 0).or(with([first, 0])).unwrap_or_default()
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_slice(&self.bytes());
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SparseRaw => f.write_str("sparse_raw"),
            Self::Other(format, TableReach::Large) => write!(f, "large_{}", format.name()),
            base => f.write_str(base.format().name()),
        }
    }
    fn parse(text: &str) -> Option<Self> {
        let format = |name: &str| ImageFormat::named(name.as_bytes());
        match text.strip_prefix("large_") {
            _ if text == "sparse_raw" => Some(Self::SparseRaw),
            None => format(text).map(Self::of),
            Some(name) => match Self::of(format(name)?) {
                base @ Self::Other(..) => Some(base.with_reach(TableReach::Large)),
                _ => None,
            },
        }
    }
}

/// The variety of an image in a format other than qcow2 and raw. Each format gives its bits a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageForm(pub u16);

operand!(
    ImageForm,
    u16,
    OperandKind::Other,
    "0 to 65535",
    Self,
    |it| it.0,
    |it, f| write!(f, "{}", it.0),
    |text| text.parse().ok().map(Self),
);

/// Optional features of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageFeatures(u8);

impl ImageFeatures {
    /// L2 entries with subcluster bitmaps.
    pub const EXTENDED_L2: Self = Self(1);
    /// Compression by zstd.
    pub const ZSTD: Self = Self(2);
    /// The lazy refcounts bit.
    pub const LAZY_REFCOUNTS: Self = Self(4);
    /// The compression type field, present even if the type is zlib.
    pub const COMPRESSION_FIELD: Self = Self(8);
    /// The feature name table.
    pub const FEATURE_NAMES: Self = Self(16);
    /// A header extension of an unknown type.
    pub const UNKNOWN_EXTENSION: Self = Self(32);
    const NAMES: [&'static str; 6] = [
        "extended_l2",
        "zstd",
        "lazy_refcounts",
        "compression_field",
        "feature_names",
        "unknown_extension",
    ];
    const ALL: u8 = 63;

    /// Reports whether all features of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of `self` and `other`.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the features of `self` that `other` lacks.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

operand!(
    ImageFeatures,
    u8,
    OperandKind::Other,
    "none, or names with commas: extended_l2, zstd, lazy_refcounts, \
     compression_field, feature_names, unknown_extension",
    |number| Self(number & Self::ALL),
    |it| it.0,
    |it, f| print_bits(u16::from(it.0), &Self::NAMES, f),
    |text| Some(Self(u8::try_from(parse_bits(text, &Self::NAMES)?).ok()?)),
);

// Two bytes. 0 is the shortest length; odd numbers count up from 104 bytes and even numbers count down from the
// cluster size, so that each number is a different length.
operand!(
    HeaderLength,
    u16,
    OperandKind::Other,
    "shortest, 104+N with N up to 32767, or cluster-N with N up to 32766",
    |number| match number {
        0 => Self::Shortest,
        odd if odd % 2 == 1 => Self::Above(odd / 2),
        even => Self::Below(even / 2 - 1),
    },
    |it| match it {
        Self::Shortest => 0,
        Self::Above(steps) => steps * 2 + 1,
        Self::Below(steps) => steps * 2 + 2,
    },
    |it, f| match it {
        Self::Shortest => f.write_str("shortest"),
        Self::Above(steps) => write!(f, "104+{steps}"),
        Self::Below(steps) => write!(f, "cluster-{steps}"),
    },
    |text| {
        if text == "shortest" {
            return Some(Self::Shortest);
        }
        if let Some(steps) = text.strip_prefix("104+") {
            return steps.parse().ok().filter(|steps| *steps <= 32767).map(Self::Above);
        }
        let steps = text.strip_prefix("cluster-")?.parse().ok()?;
        (steps <= 32766).then_some(Self::Below(steps))
    },
);

// Two bytes of flags. Decoding ignores bits without a meaning.
operand!(
    HeaderFlags,
    u16,
    OperandKind::Content,
    "none, or names with commas: dirty, corrupt, out_of_date, \
     compatible_bits, autoclear_bits, feature_names, unknown_names, \
     junk, no_end, name_at_end, empty_name, no_format",
    |number| Self(number & ((1 << Self::WORDS.len()) - 1)),
    |it| it.0,
    |it, f| print_bits(it.0, &Self::WORDS, f),
    |text| Some(Self(parse_bits(text, &Self::WORDS)?)),
);
