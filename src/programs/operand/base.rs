//! The format of the lowest image, and its variety.

use std::fmt;

use bytes::{Buf, BufMut};

use crate::disk::image_format::ImageFormat;
use crate::images::file_plan::TableReach;

use super::encoding::Operand;
use super::kind::OperandKind;

/// The format of the lowest image of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Base {
    /// A qcow2 image.
    #[default]
    Qcow2,
    /// If an overlay lies on it: a raw file with the data that a guest reads.
    Raw,
    /// A VHD image.
    Vpc,
    /// A VHDX image.
    Vhdx,
    /// A VMDK image in one file.
    Vmdk,
    /// As [`Base::Raw`], but the file has holes where it holds no data.
    SparseRaw,
    /// As [`Base::Vpc`], but the disk may be as large as the format allows.
    LargeVpc,
    /// As [`Base::Vhdx`], but the disk may be larger.
    LargeVhdx,
    /// As [`Base::Vmdk`], but the disk may be larger.
    LargeVmdk,
}

impl Base {
    /// All bases, with their words and their two bytes.
    const ALL: [(Self, &'static str, [u8; 2]); 9] = [
        (Self::Qcow2, "qcow2", [0, 0]),
        (Self::Raw, "raw", [1, 0]),
        (Self::Vpc, "vpc", [0, 1]),
        (Self::Vhdx, "vhdx", [0, 2]),
        (Self::Vmdk, "vmdk", [0, 3]),
        (Self::SparseRaw, "sparse_raw", [0, 4]),
        (Self::LargeVpc, "large_vpc", [0, 5]),
        (Self::LargeVhdx, "large_vhdx", [0, 6]),
        (Self::LargeVmdk, "large_vmdk", [0, 7]),
    ];
    /// The fold of the first byte. Other values than those of [`Base::ALL`] are those of 0.
    const FIRST_FOLD: u8 = 4;
    /// The fold of the second byte, likewise.
    const SECOND_FOLD: u8 = 16;

    /// Returns the format of the lowest image if an overlay lies on it.
    pub const fn format(self) -> ImageFormat {
        match self {
            Self::Qcow2 => ImageFormat::Qcow2,
            Self::Raw | Self::SparseRaw => ImageFormat::Raw,
            Self::Vpc | Self::LargeVpc => ImageFormat::Vpc,
            Self::Vhdx | Self::LargeVhdx => ImageFormat::Vhdx,
            Self::Vmdk | Self::LargeVmdk => ImageFormat::Vmdk,
        }
    }

    /// Returns the reach of the tables of the lowest image.
    pub const fn reach(self) -> TableReach {
        match self {
            Self::LargeVpc | Self::LargeVhdx | Self::LargeVmdk => TableReach::Large,
            _ => TableReach::Small,
        }
    }

    /// Returns the base in the same format with tables of this reach. qcow2 and raw images have only one.
    pub const fn with_reach(self, reach: TableReach) -> Self {
        match (self.format(), reach) {
            (ImageFormat::Qcow2 | ImageFormat::Raw, _) => self,
            (ImageFormat::Vpc, TableReach::Small) => Self::Vpc,
            (ImageFormat::Vpc, TableReach::Large) => Self::LargeVpc,
            (ImageFormat::Vhdx, TableReach::Small) => Self::Vhdx,
            (ImageFormat::Vhdx, TableReach::Large) => Self::LargeVhdx,
            (ImageFormat::Vmdk, TableReach::Small) => Self::Vmdk,
            (ImageFormat::Vmdk, TableReach::Large) => Self::LargeVmdk,
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
        "qcow2, raw, vpc, vhdx, vmdk, sparse_raw, large_vpc, large_vhdx or large_vmdk";
    const KIND: OperandKind = OperandKind::Other;

    fn decode(bytes: &mut &[u8]) -> Self {
        let first = bytes.get_u8() % Self::FIRST_FOLD;
        let second = bytes.get_u8() % Self::SECOND_FOLD;
        let with = |wanted| Self::ALL.into_iter().find(|(_, _, bytes)| *bytes == wanted);
        with([0, second]).filter(|_| second > 0).or(with([first, 0])).map_or(Self::Qcow2, |it| it.0)
    }
    fn encode(self, out: &mut impl BufMut) {
        let found = Self::ALL.into_iter().find(|(base, _, _)| *base == self);
        out.put_slice(&found.map_or([0, 0], |(_, _, bytes)| bytes));
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::ALL.into_iter().find(|(base, _, _)| *base == self);
        f.write_str(found.map_or("", |(_, word, _)| word))
    }
    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, word, _)| *word == text).map(|(base, _, _)| base)
    }
}

/// The variety of an image in a format other than qcow2 and raw. Each format gives its bits a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageForm(pub u16);

impl Operand for ImageForm {
    const BYTES: usize = 2;
    const EXPECTED: &'static str = "0 to 65535";
    const KIND: OperandKind = OperandKind::Other;

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(bytes.get_u16_le())
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u16_le(self.0);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }
}
