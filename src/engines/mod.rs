//! Engines: what can be put in the walker's place. The oracles reach every implementation through
//! these two traits, our own walker first. `examples/engine.rs` puts a small reader in its place.

mod walker;

use std::borrow::Cow;

use crate::error::StorageError;
use crate::extent::{Mapping, Visitor, Window};
use crate::qcow2::error::MapError;
use crate::qcow2::header::{Compression, Geometry};
use crate::qcow2::units::GuestOffset;
use crate::storage::Storage;

pub use walker::Walker;

/// What an engine says that it can do. A feature that it refuses is policy, not a bug; what it does
/// not declare is not asked of it, and what it declares must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// [`OpenDisk::lookup`] is there.
    pub lookup: bool,
    /// [`OpenDisk::read`] is there.
    pub read: bool,
    /// [`Engine::open_snapshot`] is there.
    pub snapshots: bool,
    /// Images with extended L2 entries.
    pub extended_l2: bool,
    /// Images with zstd-compressed clusters.
    pub zstd: bool,
}

impl Capabilities {
    /// Everything.
    pub const ALL: Self =
        Self { lookup: true, read: true, snapshots: true, extended_l2: true, zstd: true };

    /// Whether images of `geometry` are supported.
    pub fn cover(&self, geometry: &Geometry) -> bool {
        (self.extended_l2 || !geometry.extended_l2)
            && (self.zstd || geometry.compression != Compression::Zstd)
    }
}

/// An implementation that opens qcow2 images.
pub trait Engine {
    /// What it makes of an image.
    type Disk<'s>: OpenDisk
    where
        Self: 's;

    /// What it supports.
    fn capabilities(&self) -> Capabilities;

    /// Opens the image in `storage`.
    ///
    /// # Errors
    /// The image is refused, or cannot be read.
    fn open<'s>(&'s mut self, storage: &'s dyn Storage) -> Result<Self::Disk<'s>, EngineError>;

    /// Opens the snapshot at `index` of the snapshot table, counted from 0, as a disk of the size that
    /// it was taken of.
    ///
    /// # Errors
    /// As for [`Engine::open`], and where there is no such snapshot.
    fn open_snapshot<'s>(
        &'s mut self,
        storage: &'s dyn Storage,
        index: u32,
    ) -> Result<Self::Disk<'s>, EngineError> {
        let _ = (storage, index);
        Err(EngineError::Other("snapshots are not supported".into()))
    }
}

/// An image that an engine has opened.
pub trait OpenDisk {
    /// The size of the disk that a guest sees.
    fn virtual_size_bytes(&self) -> u64;

    /// Calls `visitor` with the extents of `window`, in order, until it breaks. The extents are
    /// maximal and clipped to the window and the disk.
    ///
    /// # Errors
    /// The image is malformed where the window is, or cannot be read. What was emitted stays.
    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Result<(), EngineError>;

    /// The mapping of one byte; its `offset` is that of the byte.
    ///
    /// # Errors
    /// As for [`OpenDisk::map`], and a byte past the end.
    fn lookup(&mut self, guest: GuestOffset) -> Result<Mapping, EngineError>;

    /// Reads the guest's bytes.
    ///
    /// # Errors
    /// As for [`OpenDisk::lookup`].
    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Result<(), EngineError>;
}

/// Why an engine did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Our walker's answer, or one in its terms.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Any other answer, in the engine's own words.
    #[error("{0}")]
    Other(Cow<'static, str>),
}

impl EngineError {
    /// Whether it is the storage that failed.
    pub fn storage(&self) -> Option<StorageError> {
        match self {
            Self::Map(MapError::Storage(error)) => Some(*error),
            _ => None,
        }
    }
}

impl From<StorageError> for EngineError {
    fn from(error: StorageError) -> Self {
        Self::Map(MapError::Storage(error))
    }
}
