//! Opens the files of an image and of all images below it, by the names that the images contain.
//!
//! A name is the name of a plain file. A relative name is resolved against the directory of the image that contains it.
//! (QEMU 10.0.2 resolves the name of a data file against the current directory instead, so that the file depends on
//! where the command is started.) Names with a protocol (`json:`, `nbd://`, `file:`) are refused: an image must not
//! open anything but a file of this machine.

mod error;
mod extents;
mod layer;
mod names;

use std::path::Path;

use crate::disk::image_format::ImageFormat;
use crate::disk::limits::MAX_FILE_LAYERS;
use crate::disk::storage::{FileId, FileStorage, Layer};
use crate::formats::error::MapError;

pub use error::ChainError;
pub use extents::ExtentFiles;
pub use layer::format_of;
use layer::{BackingReference, FileLayer, Follow};
use names::BACKING_FILE;
pub use names::has_protocol;

use super::disk::Disk;

/// The files of a chain of images, the top image first.
#[derive(Debug)]
pub struct FileChain {
    layers: Vec<FileLayer>,
    follow: Follow,
}

impl FileChain {
    /// Opens the image at `path`, and all files that it and the images below it name. If `format` is `None`, the
    /// format of the image is probed.
    ///
    /// # Errors
    /// A file cannot be opened, an image is malformed, a name is refused, the chain has a loop, or it has more than
    /// `MAX_FILE_LAYERS` images.
    pub fn open(path: &Path, format: Option<ImageFormat>) -> Result<Self, ChainError> {
        let mut chain = Self { layers: Vec::new(), follow: Follow::All };
        let mut seen: Vec<FileId> = Vec::new();
        let mut next = Some(BackingReference {
            path: path.to_path_buf(),
            name: path.display().to_string(),
            format,
        });
        while let Some(below) = next.take() {
            match chain.open_next(below, &mut seen) {
                Ok((layer, named)) => {
                    chain.layers.push(layer);
                    next = named;
                }
                Err(error) => return Err(chain.fault().unwrap_or(error)),
            }
        }
        Ok(chain)
    }

    /// Opens the image below all others. `seen` has the files of the others.
    fn open_next(
        &self,
        below: BackingReference,
        seen: &mut Vec<FileId>,
    ) -> Result<(FileLayer, Option<BackingReference>), ChainError> {
        let above = self.layers.last().map(|layer| layer.path.clone());
        let image = FileStorage::open(&below.path).map_err(|error| match &above {
            None => ChainError::File(error),
            Some(path) => ChainError::Named { path: path.clone(), what: BACKING_FILE, error },
        })?;
        let (id, name) = (image.id(), below.name.clone());
        let (layer, named) = FileLayer::open(below, image, Follow::All)?;
        // An image without a backing file ends the chain, so it cannot be part of a loop.
        if let Some(path) = above.filter(|_| named.is_some() && seen.contains(&id)) {
            return Err(ChainError::Loop { path, name });
        }
        seen.push(id);
        if self.layers.len() == MAX_FILE_LAYERS {
            return Err(ChainError::TooDeep { path: layer.path });
        }
        Ok((layer, named))
    }

    /// Returns the fault of the highest open image that has one. QEMU opens an image completely before the one below
    /// it; here, only its names have been read so far.
    fn fault(&self) -> Option<ChainError> {
        self.layers.iter().find_map(|layer| {
            let error = Disk::check_layer(layer.format, &layer.files()).err()?;
            Some(ChainError::Image { path: layer.path.clone(), error })
        })
    }

    /// Opens only the image at `path`, and none of the files that it names. If `format` is `None`, the format of the
    /// image is probed.
    ///
    /// # Errors
    /// The file cannot be opened, or the image is malformed.
    pub fn alone(path: &Path, format: Option<ImageFormat>) -> Result<Self, ChainError> {
        let image = FileStorage::open(path)?;
        let top = BackingReference { path: path.to_path_buf(), name: String::new(), format };
        let (layer, _) = FileLayer::open(top, image, Follow::Nothing)?;
        Ok(Self { layers: vec![layer], follow: Follow::Nothing })
    }

    /// Returns the format of the image at the top.
    pub fn format(&self) -> ImageFormat {
        // There is at least one layer.
        self.layers[0].format
    }

    /// Returns the files of the layers, from the top down, for [`Disk::open_as`](crate::walkers::Disk::open_as).
    pub fn layers(&self) -> Vec<Layer<'_, FileStorage>> {
        self.layers.iter().map(FileLayer::files).collect()
    }

    /// Opens the disk. If only the top image was opened ([`FileChain::alone`]), ranges of other files are holes.
    ///
    /// # Errors
    /// As for [`Disk::open_as`].
    pub fn disk(&self) -> Result<Disk<'_, FileStorage>, MapError> {
        let layers = self.layers();
        match (self.follow, layers.as_slice()) {
            (Follow::Nothing, [layer, ..]) => Disk::open_alone(self.format(), layer.image),
            _ => Disk::open_as(self.format(), &layers),
        }
    }

    /// Returns the path of the file that holds the data of the layer at `depth`; `extent` is the number of the extent
    /// that holds the data, counted from 0.
    pub fn data_path(&self, depth: u32, extent: Option<usize>) -> Option<&Path> {
        let layer = self.layers.get(usize::try_from(depth).ok()?)?;
        let extent = extent.and_then(|index| layer.extents.paths.get(index));
        let data_file = layer.data_file.as_ref().map(|file| &file.path);
        Some(extent.or(data_file).unwrap_or(&layer.path))
    }

    /// Returns the path of the image of the layer at `depth`.
    pub fn image_path(&self, depth: u32) -> Option<&Path> {
        Some(&self.layers.get(usize::try_from(depth).ok()?)?.path)
    }
}
