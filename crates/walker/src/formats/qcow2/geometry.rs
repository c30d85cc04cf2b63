//! The parameters that decide the meaning of every structure of an image. These types only hold values.
//! [`Layout`](super::entry::Layout) calculates sizes from them for the code that reads; the build calculates them
//! again for the code that writes.

use crate::disk::clusters::ClusterSize;

/// The compression type of compressed clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Raw deflate (the specification's "zlib", type 0).
    #[default]
    Deflate,
    /// Zstandard (type 1).
    Zstd,
}

/// The version of qcow2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// Version 2, `compat=0.10`: no feature bits, 16-bit refcounts, no zero clusters.
    V2,
    /// Version 3, `compat=1.1`.
    #[default]
    V3,
}

/// The parameters that decide the meaning of every structure of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The version.
    pub version: Version,
    /// The cluster size.
    pub cluster_size: ClusterSize,
    /// log2 of the refcount width in bits, 0 to 6.
    pub refcount_order: u32,
    /// L2 entries have subcluster bitmaps. This needs clusters of 16 KiB or more.
    pub extended_l2: bool,
    /// The compression type of compressed clusters.
    pub compression: Compression,
    /// An external data file holds the guest data, each byte at its guest offset.
    pub data_file: bool,
}
