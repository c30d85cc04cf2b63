//! Engines: what can be put in the walker's place. The oracles reach every implementation through
//! these two traits, our own walker first. `examples/engine.rs` puts a small reader in its place.

use std::borrow::Cow;

use crate::disk::error::StorageError;
use crate::disk::extent::{Mapping, Visitor, Window};
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Layer;
use crate::formats::qcow2::error::MapError;
use crate::formats::qcow2::geometry::{Compression, Geometry};

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
    /// Images with backing files: qcow2 on qcow2, and qcow2 on raw.
    pub backing_files: bool,
    /// Images with external data files.
    pub data_files: bool,
}

impl Capabilities {
    /// Everything.
    pub const ALL: Self = Self {
        lookup: true,
        read: true,
        snapshots: true,
        extended_l2: true,
        zstd: true,
        backing_files: true,
        data_files: true,
    };

    /// The walk of one file, and nothing else.
    pub const NONE: Self = Self {
        lookup: false,
        read: false,
        snapshots: false,
        extended_l2: false,
        zstd: false,
        backing_files: false,
        data_files: false,
    };

    /// Whether images of `geometry` are supported.
    pub fn cover(&self, geometry: &Geometry) -> bool {
        (self.extended_l2 || !geometry.extended_l2)
            && (self.zstd || geometry.compression != Compression::Zstd)
            && (self.data_files || !geometry.data_file)
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

    /// Begins a run: the images of another input come next. An engine that keeps anything from image to image, to
    /// be faster, forgets it here. So the coverage of a run, like its verdict, depends on its input alone.
    fn begin_run(&mut self) {}

    /// Opens the image at the top of `chain`: its files first, then those of the images below it, each
    /// the backing file of the one before. An engine that declares no [`Capabilities::backing_files`]
    /// gets one layer.
    ///
    /// # Errors
    /// The image is refused, or cannot be read.
    fn open<'s>(&'s mut self, chain: &[Layer<'s>]) -> Result<Self::Disk<'s>, EngineError>;

    /// Opens the snapshot at `index` of the first image's snapshot table, counted from 0, as a disk of the
    /// size that it was taken of. What it lacks is in the layers below, as they are.
    ///
    /// # Errors
    /// As for [`Engine::open`], and where there is no such snapshot.
    fn open_snapshot<'s>(
        &'s mut self,
        chain: &[Layer<'s>],
        index: u32,
    ) -> Result<Self::Disk<'s>, EngineError> {
        let _ = (chain, index);
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
            Self::Map(error) => error.storage(),
            Self::Other(_) => None,
        }
    }
}

impl From<StorageError> for EngineError {
    fn from(error: StorageError) -> Self {
        Self::Map(error.into())
    }
}
