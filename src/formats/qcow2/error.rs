//! What is wrong with an image.

use std::fmt;
use std::ops::ControlFlow;

use crate::disk::error::StorageError;
use crate::disk::offsets::{GuestOffset, HostOffset};

/// The image is malformed, or uses what is not supported: a valid answer about the image, not a
/// failure of the program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The first four bytes are not a qcow2 image's.
    #[error(
        "not a qcow2 image: the file begins with {found:#010x}, expected {:#010x}",
        super::constants::MAGIC
    )]
    NotQcow2 {
        /// The first four bytes, big-endian.
        found: u32,
    },
    /// A header field has a value that no reader accepts.
    #[error("header: {field} is {found}, expected {expected}")]
    Header {
        /// The field's name in the specification.
        field: &'static str,
        /// What it holds.
        found: u64,
        /// What it may hold.
        expected: &'static str,
    },
    /// A well-formed image that uses a feature which is not supported here.
    #[error("unsupported feature: {0}")]
    Unsupported(&'static str),
    /// An error in one of the layers below, other than a failing read.
    #[error("{}{error}", Self::prefix(*depth))]
    Below {
        /// How many layers down, at least 1.
        depth: u32,
        /// What went wrong there.
        error: Box<MapError>,
    },
    /// A file that the image names, and that is not at hand.
    #[error("{0}: named by the image, and not at hand")]
    Missing(&'static str),
    /// More than is kept in memory.
    #[error("too large to be checked: {0}")]
    TooLarge(&'static str),
    /// A header extension does not fit where extensions lie.
    #[error(
        "header extension {kind:#010x} at {at}: its length {length} reaches past the area's end at {area_end}"
    )]
    ExtensionLength {
        /// The extension's type.
        kind: u32,
        /// Its host offset.
        at: u64,
        /// Its length in bytes.
        length: u32,
        /// Where the extension area ends.
        area_end: u64,
    },
    /// A header extension that no reader accepts.
    #[error("header extension {kind:#010x} at {at}: it {what}")]
    Extension {
        /// The extension's type.
        kind: u32,
        /// Its host offset.
        at: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A table entry points into the middle of a cluster.
    #[error(
        "{structure} for guest offset {guest}: host offset {host:#x} is not on a cluster boundary"
    )]
    Unaligned {
        /// What the offset points to.
        structure: &'static str,
        /// The guest offset that was asked for.
        guest: GuestOffset,
        /// The offset as stored.
        host: HostOffset,
    },
    /// An entry's bits contradict each other or the image's version.
    #[error("L2 entry for guest offset {guest}: {what}")]
    InvalidEntry {
        /// The guest offset that was asked for.
        guest: GuestOffset,
        /// What is contradictory.
        what: &'static str,
    },
    /// A compressed cluster does not inflate to a whole cluster.
    #[error("compressed cluster at guest offset {guest}: {what}")]
    Compressed {
        /// The guest offset of the cluster.
        guest: GuestOffset,
        /// What went wrong.
        what: &'static str,
    },
    /// A snapshot table entry is malformed.
    #[error("snapshot table entry {index}: {what}")]
    Snapshot {
        /// The entry's place in the table, from 0.
        index: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// The bitmaps extension has a value that QEMU refuses.
    #[error("bitmaps extension: {field} is {found}, expected {expected}")]
    BitmapsExtension {
        /// The field's name in the specification.
        field: &'static str,
        /// What it holds.
        found: u64,
        /// What it may hold.
        expected: &'static str,
    },
    /// The bitmap directory does not have the entries that the bitmaps extension says.
    #[error("bitmap directory: {what}")]
    BitmapDirectory {
        /// What is wrong.
        what: &'static str,
    },
    /// A bitmap directory entry, or the table that it names, is malformed.
    #[error("bitmap {index}: {what}")]
    Bitmap {
        /// The entry's place in the directory, from 0.
        index: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// A refcount table entry points to where no refcount block can be.
    #[error("refcount table entry {index}: the refcount block at {host:#x} {what}")]
    RefcountBlock {
        /// The entry's place in the table, from 0.
        index: u64,
        /// The offset as stored.
        host: HostOffset,
        /// What is wrong.
        what: &'static str,
    },
    /// A point beyond the end of the disk was asked for.
    #[error("guest offset {guest} lies past the end of the disk at {virtual_size}")]
    PastEnd {
        /// The offset asked for.
        guest: GuestOffset,
        /// The disk's size in bytes.
        virtual_size: u64,
    },
    /// A file could not be read. The one error that engines meet on valid images, in every run of the
    /// `io` oracle: it says itself how far down it was, and is not boxed.
    #[error("{}{error}", Self::prefix(*depth))]
    Storage {
        /// How many layers down, 0 for the image itself.
        depth: u32,
        /// What could not be read.
        error: StorageError,
    },
}

/// Whether the caller goes on, or what is wrong with the image.
pub type Flow = Result<ControlFlow<()>, MapError>;

impl From<StorageError> for MapError {
    fn from(error: StorageError) -> Self {
        Self::Storage { depth: 0, error }
    }
}

impl MapError {
    /// The same error, one layer further down.
    pub(crate) fn below(self) -> Self {
        self.below_by(1)
    }

    /// The same error, so many layers further down.
    pub(crate) fn below_by(self, more: u32) -> Self {
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

    /// In which layer it was, counted from the image itself, and what was wrong there.
    pub fn located(&self) -> (u32, &dyn fmt::Display) {
        match self {
            Self::Below { depth, error } => (*depth, error),
            Self::Storage { depth, error } => (*depth, error),
            error => (0, error),
        }
    }

    /// The failing read that it is, in whatever layer.
    pub fn storage(&self) -> Option<StorageError> {
        match self {
            Self::Storage { error, .. } => Some(*error),
            _ => None,
        }
    }

    /// What is put before an error that was so far down.
    fn prefix(depth: u32) -> String {
        match depth {
            0 => String::new(),
            1 => "1 layer down: ".to_owned(),
            _ => format!("{depth} layers down: "),
        }
    }
}
