//! The requests of a guest to a disk that an engine has opened for writing.

use crate::disk::offsets::GuestOffset;
use crate::harness::engine::questions::QuestionKind;
use crate::programs::BitmapChange;

/// A request to a disk that is open for writing. Its range lies on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'b> {
    /// Writes `bytes` to the guest disk from `guest` on.
    Write {
        /// The first byte.
        guest: GuestOffset,
        /// The bytes.
        bytes: &'b [u8],
    },
    /// Makes a range read as zeros. Engines need not store them.
    WriteZeroes {
        /// The first byte.
        guest: GuestOffset,
        /// The number of bytes.
        length_bytes: u64,
    },
    /// Frees whole clusters, which then read as zeros.
    Discard {
        /// The first byte, at the edge of a cluster.
        guest: GuestOffset,
        /// The number of bytes: whole clusters, or all up to the end of the disk.
        length_bytes: u64,
    },
    /// Gives the disk another size. New bytes read as zeros, also if the layers below have other bytes there. If
    /// the disk shrinks inside a cluster and grows again, the end of that cluster may have any bytes.
    Resize {
        /// The new size in bytes: whole sectors of 512 bytes.
        size_bytes: u64,
    },
    /// Takes a snapshot of the disk as it is now. It comes behind all others in the snapshot table of the image.
    TakeSnapshot,
    /// Restores the disk, with its size, from the snapshot at `index` of the snapshot table, counted from 0.
    ApplySnapshot {
        /// The index.
        index: u32,
    },
    /// Deletes the snapshot at `index` of the snapshot table, counted from 0. Those behind it move up.
    DeleteSnapshot {
        /// The index.
        index: u32,
    },
    /// Changes the bitmap at `index` of the image's directory of persistent dirty bitmaps, counted from 0. A new one
    /// comes behind all others, and `index` is their number. An enabled bitmap has a one for every byte that changes.
    ///
    /// An engine that does not support bitmaps clears the autoclear bit of an image that has some, before it changes
    /// anything.
    ChangeBitmap {
        /// The index.
        index: u32,
        /// The change.
        change: BitmapChange,
    },
    /// Writes all changes to the file, and makes them survive a power cut
    /// ([`ChainFile::flush`](crate::harness::files::chain::ChainFile::flush)).
    Flush,
}

impl Request<'_> {
    pub(crate) const fn kind(&self) -> QuestionKind {
        match self {
            Self::Write { .. } => QuestionKind::Writing,
            Self::WriteZeroes { .. } => QuestionKind::WriteZeroes,
            Self::Discard { .. } => QuestionKind::Discard,
            Self::Resize { .. } => QuestionKind::Resize,
            Self::TakeSnapshot => QuestionKind::TakeSnapshot,
            Self::ApplySnapshot { .. } => QuestionKind::ApplySnapshot,
            Self::DeleteSnapshot { .. } => QuestionKind::DeleteSnapshot,
            Self::ChangeBitmap { .. } => QuestionKind::ChangeBitmap,
            Self::Flush => QuestionKind::Flush,
        }
    }
}
