//! The engine interface: to fuzz your own implementation, implement these two traits. The oracles call every
//! implementation through them, our own walker included. `examples/engine.rs` implements them for a small reader.

use std::error::Error;

use crate::disk::chain_features::ChainFeatures;
use crate::disk::error::StorageError;
use crate::disk::extent::{Mapping, Visitor, Window};
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Layer;

/// The features that an engine declares. The harness calls only the capabilities that an engine declares, and passes it
/// only images with features that it declares. A violation in any of these is a bug of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The engine implements [`OpenDisk::lookup`].
    pub lookup: bool,
    /// The engine implements [`OpenDisk::read`].
    pub read: bool,
    /// The engine implements [`Engine::open_snapshot`].
    pub snapshots: bool,
    /// The engine opens images with extended L2 entries.
    pub extended_l2: bool,
    /// The engine opens images with zstd-compressed clusters.
    pub zstd: bool,
    /// The engine opens images with backing files: qcow2 on qcow2, and qcow2 on raw.
    pub backing_files: bool,
    /// The engine opens images with external data files.
    pub data_files: bool,
}

impl Capabilities {
    /// All capabilities.
    pub const ALL: Self = Self {
        lookup: true,
        read: true,
        snapshots: true,
        extended_l2: true,
        zstd: true,
        backing_files: true,
        data_files: true,
    };

    /// No capability: only [`OpenDisk::map`] of images in one file.
    pub const NONE: Self = Self {
        lookup: false,
        read: false,
        snapshots: false,
        extended_l2: false,
        zstd: false,
        backing_files: false,
        data_files: false,
    };

    /// Reports whether the engine opens a chain with these features.
    pub fn cover(&self, features: &ChainFeatures) -> bool {
        let ChainFeatures { extended_l2, zstd, data_files, backing_files } = *features;
        (self.extended_l2 || !extended_l2)
            && (self.zstd || !zstd)
            && (self.data_files || !data_files)
            && (self.backing_files || !backing_files)
    }
}

/// An implementation that opens disk images.
pub trait Engine {
    /// An image that the engine has opened.
    type Disk<'s>: OpenDisk
    where
        Self: 's;

    /// Returns the features that the engine declares.
    fn capabilities(&self) -> Capabilities;

    /// Begins a run: the next images belong to another input. An engine that caches anything from image to image clears
    /// the cache here, so that the coverage of a run depends on its input alone, as its verdict does.
    fn begin_run(&mut self) {}

    /// Opens the image at the top of `chain`. The first layer holds the files of this image; each next layer is the
    /// backing file of the layer before it. An engine that does not declare [`Capabilities::backing_files`] gets one
    /// layer.
    ///
    /// # Errors
    /// The image is refused, or cannot be read.
    fn open<'s>(&'s mut self, chain: &[Layer<'s>]) -> Result<Self::Disk<'s>, EngineError>;

    /// Opens the snapshot at `index` of the first image's snapshot table, counted from 0. The disk has the size that it
    /// had when the snapshot was taken. Ranges that the snapshot does not map come from the layers below.
    ///
    /// # Errors
    /// As for [`Engine::open`]; or the snapshot does not exist.
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
    /// Returns the size of the disk that a guest sees.
    fn virtual_size_bytes(&self) -> u64;

    /// Calls `visitor` with the extents of `window`, in order, until it breaks. The extents are
    /// maximal and clipped to the window and the disk.
    ///
    /// # Errors
    /// The image is malformed in the window, or cannot be read. The extents that were emitted before stay valid.
    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Result<(), EngineError>;

    /// Returns the mapping of one byte; its `offset` is the host offset of this byte.
    ///
    /// # Errors
    /// As for [`OpenDisk::map`]; or the byte lies past the end of the disk.
    fn lookup(&mut self, guest: GuestOffset) -> Result<Mapping, EngineError>;

    /// Fills `into` with the guest's bytes from `guest` on.
    ///
    /// # Errors
    /// As for [`OpenDisk::lookup`].
    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Result<(), EngineError>;
}

/// The reason why an engine did not answer.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The byte lies past the end of the disk.
    #[error("guest offset {guest} lies past the end of the disk at {virtual_size}")]
    PastEnd {
        /// The requested guest offset.
        guest: GuestOffset,
        /// The disk's size in bytes.
        virtual_size: u64,
    },
    /// The image is malformed.
    #[error(transparent)]
    Malformed(Box<dyn Error + Send + Sync>),
    /// Any other error, or one whose kind the engine does not report.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

impl EngineError {
    /// Returns the error of the storage, if the storage failed.
    pub fn storage(&self) -> Option<StorageError> {
        match self {
            Self::Storage(error) => Some(*error),
            Self::PastEnd { .. } | Self::Malformed(_) | Self::Other(_) => None,
        }
    }
}
