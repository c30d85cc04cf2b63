//! Opens the files of one layer of a chain.

use std::path::{Path, PathBuf};

use crate::disk::image_format::ImageFormat;
use crate::disk::storage::{FileStorage, Layer};
use crate::formats::error::MapError;
use crate::formats::probe;
use crate::formats::qcow2::head::Head;
use crate::formats::vmdk::head::{Identity, ImageLayout};

use super::error::ChainError;
use super::extents::ExtentFiles;
use super::names::{BACKING_FILE, DATA_FILE, beside, open_named, plain, stored_name};

/// An open layer.
#[derive(Debug)]
pub(super) struct FileLayer {
    pub(super) format: ImageFormat,
    pub(super) path: PathBuf,
    image: FileStorage,
    pub(super) data_file: Option<DataFile>,
    /// Empty if names are not followed.
    pub(super) extents: ExtentFiles,
}

#[derive(Debug)]
pub(super) struct DataFile {
    pub(super) path: PathBuf,
    /// `None` if names are not followed.
    storage: Option<FileStorage>,
}

/// The names that are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follow {
    All,
    Nothing,
}

/// The reference of an image to the image below it.
pub(super) struct BackingReference {
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) format: Option<ImageFormat>,
}

impl FileLayer {
    /// Opens the other files of the layer of an open image. Returns the reference to its backing file, too, if it has
    /// one.
    pub(super) fn open(
        below: BackingReference,
        image: FileStorage,
        follow: Follow,
    ) -> Result<(Self, Option<BackingReference>), ChainError> {
        let BackingReference { path, format, .. } = below;
        let image_error = |error| ChainError::Image { path: path.clone(), error };
        let format = format_of(&path, &image, format).map_err(image_error)?;
        let layer = Self { format, path, image, data_file: None, extents: ExtentFiles::default() };
        match format {
            ImageFormat::Qcow2 => layer.with_files_of_qcow2(follow),
            ImageFormat::Vmdk => layer.with_files_of_vmdk(follow),
            // Images of the other formats are one file.
            _ => Ok((layer, None)),
        }
    }

    /// Returns the files of the layer.
    pub(super) fn files(&self) -> Layer<'_, FileStorage> {
        let data_file = self.data_file.as_ref().and_then(|file| file.storage.as_ref());
        Layer { image: &self.image, data_file, extents: &self.extents.files }
    }

    fn with_files_of_qcow2(
        mut self,
        follow: Follow,
    ) -> Result<(Self, Option<BackingReference>), ChainError> {
        let head = Head::read(&self.image).map_err(|error| self.error(error))?;
        if head.header.geometry.data_file {
            self.data_file = Some(self.open_data_file(&head, follow)?);
        }
        let Some(field) = head.backing_name.filter(|_| follow == Follow::All) else {
            return Ok((self, None));
        };
        let format = head.backing_format_in(&self.image).map_err(|error| self.error(error))?;
        let name = stored_name(&self.path, &self.image, field)?;
        let named = self.backing(name.as_encoded_bytes(), format)?;
        Ok((self, Some(named)))
    }

    fn with_files_of_vmdk(
        mut self,
        follow: Follow,
    ) -> Result<(Self, Option<BackingReference>), ChainError> {
        let layout = ImageLayout::read(&self.image).map_err(|error| self.error(error))?;
        if follow == Follow::Nothing {
            return Ok((self, None));
        }
        self.extents = ExtentFiles::open(&self.path, &layout)?;
        let identity = Identity::read(&self.image, &layout).map_err(|error| self.error(error))?;
        let named = identity.parent_name.map(|name| self.backing(&name, Some(ImageFormat::Vmdk)));
        Ok((self, named.transpose()?))
    }

    /// Returns the reference to a backing file by its name.
    fn backing(
        &self,
        name: &[u8],
        format: Option<ImageFormat>,
    ) -> Result<BackingReference, ChainError> {
        let name = plain(&self.path, BACKING_FILE, name)?;
        let path = beside(&self.path, name);
        Ok(BackingReference { path, name: name.to_string_lossy().into_owned(), format })
    }

    fn open_data_file(&self, head: &Head, follow: Follow) -> Result<DataFile, ChainError> {
        let Some(field) = head.data_file else {
            return Err(self.error(MapError::Missing("name of the external data file")));
        };
        // QEMU opens these names literally, including colons.
        let path = beside(&self.path, &stored_name(&self.path, &self.image, field)?);
        let storage = match follow {
            Follow::Nothing => None,
            Follow::All => Some(open_named(&self.path, DATA_FILE, &path)?),
        };
        Ok(DataFile { path, storage })
    }

    fn error(&self, error: MapError) -> ChainError {
        ChainError::Image { path: self.path.clone(), error }
    }
}

/// Returns the format of the image at `path`. If `format` is `None`, the format is probed.
pub fn format_of(
    path: &Path,
    image: &FileStorage,
    format: Option<ImageFormat>,
) -> Result<ImageFormat, MapError> {
    match format {
        Some(format) => Ok(format),
        // QEMU recognises these images by their names alone (`block/dmg.c`, `dmg_probe`).
        None if path.as_os_str().as_encoded_bytes().ends_with(b".dmg") => {
            Err(MapError::Unsupported("image in the format dmg"))
        }
        None => probe(image),
    }
}
