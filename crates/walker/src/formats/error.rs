//! Errors in images of all formats.

use std::fmt;
use std::ops::ControlFlow;

use crate::disk::error::StorageError;
use crate::disk::offsets::{GuestOffset, HostOffset};

/// The image is malformed, or uses a feature that is not supported. This is a valid answer about the image, not a
/// failure of the program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The first four bytes are not the magic number of qcow2.
    #[error(
        "not a qcow2 image: the file begins with {found:#010x}, expected {:#010x}",
        super::qcow2::constants::MAGIC
    )]
    NotQcow2 {
        /// The first four bytes, big-endian.
        found: u32,
    },
    /// The file does not have what every image of a format has.
    #[error("not a {format} image: {what}")]
    NotImage {
        /// The name of the format.
        format: &'static str,
        /// The missing part.
        what: &'static str,
    },
    /// A header field has a value that no reader accepts.
    #[error("header: {field} is {found}, expected {expected}")]
    Header {
        /// The field's name in the specification.
        field: &'static str,
        /// The field's value.
        found: u64,
        /// The values that are allowed.
        expected: &'static str,
    },
    /// The image is well-formed, but uses a feature that is not supported.
    #[error("unsupported feature: {0}")]
    Unsupported(&'static str),
    /// An error in a layer below, other than a failed read.
    #[error("{}{error}", Self::prefix(*depth))]
    Below {
        /// The number of the layer, counted down the chain from 1.
        depth: u32,
        /// The error in that layer.
        error: Box<MapError>,
    },
    /// The image names a file that is not available.
    #[error("{0}: named by the image, and not at hand")]
    Missing(&'static str),
    /// The image has more references or counts than memory may hold.
    #[error("too large to be checked: {0}")]
    TooLarge(&'static str),
    /// A header extension does not fit into the area for extensions.
    #[error(
        "header extension {kind:#010x} at {at}: its length {length} reaches past the area's end at {area_end}"
    )]
    ExtensionLength {
        /// The extension's type.
        kind: u32,
        /// The host offset.
        at: u64,
        /// The length in bytes.
        length: u32,
        /// The end of the area.
        area_end: u64,
    },
    /// A header extension is malformed.
    #[error("header extension {kind:#010x} at {at}: it {what}")]
    Extension {
        /// The extension's type.
        kind: u32,
        /// The host offset.
        at: u64,
        /// The fault in the extension.
        what: &'static str,
    },
    /// A table entry points into the middle of a cluster.
    #[error(
        "{structure} for guest offset {guest}: host offset {host:#x} is not on a cluster boundary"
    )]
    Unaligned {
        /// The structure that the offset points to.
        structure: &'static str,
        /// The guest offset that the walk or the look-up had reached.
        guest: GuestOffset,
        /// The offset as stored.
        host: HostOffset,
    },
    /// An entry's bits contradict each other or the image's version.
    #[error("L2 entry for guest offset {guest}: {what}")]
    InvalidEntry {
        /// The guest offset that the walk or the look-up had reached.
        guest: GuestOffset,
        /// The contradiction.
        what: &'static str,
    },
    /// An entry of a block allocation table names a block that no reader can read.
    #[error("block allocation table entry {index}: {what}")]
    BlockEntry {
        /// The entry's index in the table, from 0.
        index: u64,
        /// The fault in the entry.
        what: &'static str,
    },
    /// A compressed cluster does not inflate to a whole cluster.
    #[error("compressed cluster at guest offset {guest}: {what}")]
    Compressed {
        /// The guest offset of the cluster.
        guest: GuestOffset,
        /// The fault in the payload.
        what: &'static str,
    },
    /// The tables of an extent, or a compressed grain, are malformed.
    #[error("grain at guest offset {guest}: {what}")]
    Grain {
        /// The guest offset that the walk, the look-up or the read had reached.
        guest: GuestOffset,
        /// The fault of the entry or the payload.
        what: &'static str,
    },
    /// A snapshot table entry is malformed.
    #[error("snapshot table entry {index}: {what}")]
    Snapshot {
        /// The entry's index in the table, from 0.
        index: u32,
        /// The fault in the offset.
        what: &'static str,
    },
    /// The bitmaps extension has a value that QEMU refuses.
    #[error("bitmaps extension: {field} is {found}, expected {expected}")]
    BitmapsExtension {
        /// The field's name in the specification.
        field: &'static str,
        /// The field's value.
        found: u64,
        /// The values that are allowed.
        expected: &'static str,
    },
    /// The bitmap directory does not hold the entries that the bitmaps extension announces.
    #[error("bitmap directory: {what}")]
    BitmapDirectory {
        /// The fault in the offset.
        what: &'static str,
    },
    /// A bitmap directory entry, or the table that it names, is malformed.
    #[error("bitmap {index}: {what}")]
    Bitmap {
        /// The entry's index in the directory, from 0.
        index: u32,
        /// The fault in the offset.
        what: &'static str,
    },
    /// A refcount table entry points to an offset that no refcount block can have.
    #[error("refcount table entry {index}: the refcount block at {host:#x} {what}")]
    RefcountBlock {
        /// The entry's index in the table, from 0.
        index: u64,
        /// The offset as stored.
        host: HostOffset,
        /// The fault in the offset.
        what: &'static str,
    },
    /// The caller asked for a byte past the end of the disk.
    #[error("guest offset {guest} lies past the end of the disk at {virtual_size}")]
    PastEnd {
        /// The guest offset of that byte.
        guest: GuestOffset,
        /// The disk's size in bytes.
        virtual_size: u64,
    },
    /// A read of a file failed. Engines meet this error on valid images in every run of the `io` oracle, so it holds
    /// the depth itself and needs no box.
    #[error("{}{error}", Self::prefix(*depth))]
    Storage {
        /// The number of the layer, counted down the chain; 0 is the image itself.
        depth: u32,
        /// The failed read.
        error: StorageError,
    },
}

/// The decision whether the caller continues, or the error in the image.
pub type Flow = Result<ControlFlow<()>, MapError>;

impl From<StorageError> for MapError {
    fn from(error: StorageError) -> Self {
        Self::Storage { depth: 0, error }
    }
}

impl MapError {
    /// Returns the same error, one layer further down.
    pub fn below(self) -> Self {
        self.below_by(1)
    }

    /// Returns the same error, `more` layers further down.
    pub fn below_by(self, more: u32) -> Self {
        match (self, more) {
            (error, 0) => error,
            // Chains have 64 layers at most: no depth saturates.
            (Self::Below { depth, error }, _) => {
                Self::Below { depth: depth.saturating_add(more), error }
            }
            (Self::Storage { depth, error }, _) => {
                Self::Storage { depth: depth.saturating_add(more), error }
            }
            (error, depth) => Self::Below { depth, error: Box::new(error) },
        }
    }

    /// Returns the number of the layer, 0 for the image itself, and the error in that layer.
    pub fn located(&self) -> (u32, &dyn fmt::Display) {
        match self {
            Self::Below { depth, error } => (*depth, error),
            Self::Storage { depth, error } => (*depth, error),
            error => (0, error),
        }
    }

    /// Returns the failed read, in any layer, if that is the error.
    pub fn storage(&self) -> Option<StorageError> {
        match self {
            Self::Storage { error, .. } => Some(*error),
            _ => None,
        }
    }

    /// Reports whether the image is the reason of the error. If not, a read has failed.
    pub fn is_of_image(&self) -> bool {
        self.storage().is_none()
    }

    /// Returns the prefix that locates an error in a layer below.
    fn prefix(depth: u32) -> String {
        match depth {
            0 => String::new(),
            1 => "1 layer down: ".to_owned(),
            _ => format!("{depth} layers down: "),
        }
    }
}
