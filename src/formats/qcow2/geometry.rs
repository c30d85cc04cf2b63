//! What decides the meaning of every structure of an image. These types hold values only; sizes that follow from them are
//! calculated by [`Layout`](super::layout::Layout) for the code that reads, and again by the build for the code that writes.

use super::units::ClusterSize;

/// How compressed clusters are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Raw deflate (the specification's "zlib", type 0).
    #[default]
    Deflate,
    /// Zstandard (type 1).
    Zstd,
}

/// A format that a backing file can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageFormat {
    /// An image, perhaps with layers of its own below it.
    #[default]
    Qcow2,
    /// Guest data from the first byte to the last.
    Raw,
}

impl ImageFormat {
    /// What the backing format extension calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
        }
    }

    /// The format that the extension calls by `name`, up to its first zero byte.
    pub fn named(name: &[u8]) -> Option<Self> {
        let name = name.split(|byte| *byte == 0).next()?;
        [Self::Qcow2, Self::Raw].into_iter().find(|format| format.name().as_bytes() == name)
    }
}

/// The version of the format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// Version 2, `compat=0.10`: no feature bits, 16-bit refcounts, no zero clusters.
    V2,
    /// Version 3, `compat=1.1`.
    #[default]
    V3,
}

/// What decides the meaning of every structure of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The version.
    pub version: Version,
    /// The cluster size.
    pub cluster_size: ClusterSize,
    /// log2 of the refcount width in bits, 0 to 6.
    pub refcount_order: u32,
    /// L2 entries have subcluster bitmaps; needs 16 KiB clusters.
    pub extended_l2: bool,
    /// How compressed clusters are compressed.
    pub compression: Compression,
    /// Guest data lie in another file, each byte at its guest offset.
    pub data_file: bool,
}
