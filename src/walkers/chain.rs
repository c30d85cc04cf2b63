//! Opens the files of an image and of all images below it, by the names that the images contain.
//!
//! A name is the name of a plain file. A relative name is resolved against the directory of the image that contains it.
//! (QEMU 10.0.2 resolves the name of a data file against the current directory instead, so that the file depends on
//! where the command is started.) Names with a protocol (`json:`, `nbd://`, `file:`) are refused: an image must not
//! open anything but a file of this machine.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::disk::error::Error;
use crate::disk::image_format::ImageFormat;
use crate::disk::limits::MAX_FILE_LAYERS;
use crate::disk::storage::{FileId, FileStorage, Layer, Storage};
use crate::formats::error::MapError;
use crate::formats::probe::probe;
use crate::formats::qcow2::head::{Field, Head};

/// The files of a chain of images, the top image first.
#[derive(Debug)]
pub struct FileChain {
    layers: Vec<FileLayer>,
}

#[derive(Debug)]
struct FileLayer {
    format: ImageFormat,
    path: PathBuf,
    image: FileStorage,
    data_file: Option<DataFile>,
}

#[derive(Debug)]
struct DataFile {
    path: PathBuf,
    /// `None` if names are not followed.
    storage: Option<FileStorage>,
}

impl FileLayer {
    fn files(&self) -> Layer<'_, FileStorage> {
        let data_file = self.data_file.as_ref().and_then(|file| file.storage.as_ref());
        Layer { image: &self.image, data_file }
    }
}

/// The names that are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Follow {
    All,
    Nothing,
}

const BACKING_FILE: &str = "backing file";
const DATA_FILE: &str = "data file";

/// The reason why a chain could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The top image could not be opened.
    #[error(transparent)]
    File(#[from] Error),
    /// A file that an image names could not be opened.
    #[error("{path}: the {what} that it names: {error}", path = path.display())]
    Named {
        /// The image that contains the name.
        path: PathBuf,
        /// The purpose of the file.
        what: &'static str,
        /// The reason why it could not be opened.
        error: Error,
    },
    /// An image is malformed, or of a format that is not supported.
    #[error("{path}: {error}", path = path.display())]
    Image {
        /// The image.
        path: PathBuf,
        /// The fault of the image.
        error: MapError,
    },
    /// A name contains more than the name of a file.
    #[error(
        "{path}: the backing file '{name}' names a protocol, expected the name of a file",
        path = path.display()
    )]
    Protocol {
        /// The image that contains the name.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// An image lies below itself.
    #[error("{path}: the backing file '{name}' is a file above it in the chain", path = path.display())]
    Loop {
        /// The image that contains the name.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// The chain has too many images.
    #[error("{path}: more than {MAX_FILE_LAYERS} images in the chain", path = path.display())]
    TooDeep {
        /// The last image that was opened.
        path: PathBuf,
    },
}

/// The reference of an image to the image below it.
struct BackingReference {
    path: PathBuf,
    name: String,
    format: Option<ImageFormat>,
}

impl FileChain {
    /// Opens the image at `path`, its data file, and all files that it and the images below it name. If `format` is
    /// `None`, the format of the image is probed.
    ///
    /// # Errors
    /// A file cannot be opened, an image is malformed, a name is refused, the chain has a loop, or it has more than
    /// `MAX_FILE_LAYERS` images.
    pub fn open(path: &Path, format: Option<ImageFormat>) -> Result<Self, ChainError> {
        let mut chain = Self { layers: Vec::new() };
        let mut seen: Vec<FileId> = Vec::new();
        let mut next = Some(BackingReference {
            path: path.to_path_buf(),
            name: path.display().to_string(),
            format,
        });
        while let Some(below) = next.take() {
            let above = chain.layers.last().map(|layer| layer.path.clone());
            let image = FileStorage::open(&below.path).map_err(|error| match &above {
                None => ChainError::File(error),
                Some(path) => ChainError::Named { path: path.clone(), what: BACKING_FILE, error },
            })?;
            let (id, name) = (image.id(), below.name.clone());
            let (layer, named) = layer(below, image, Follow::All)?;
            // An image without a backing file ends the chain, so it cannot be part of a loop.
            if let Some(path) = above.filter(|_| named.is_some() && seen.contains(&id)) {
                return Err(ChainError::Loop { path, name });
            }
            seen.push(id);
            if chain.layers.len() == MAX_FILE_LAYERS {
                return Err(ChainError::TooDeep { path: layer.path });
            }
            chain.layers.push(layer);
            next = named;
        }
        Ok(chain)
    }

    /// Opens only the image at `path`, and none of the files that it names. If `format` is `None`, the format of the
    /// image is probed.
    ///
    /// # Errors
    /// The file cannot be opened, or the image is malformed.
    pub fn alone(path: &Path, format: Option<ImageFormat>) -> Result<Self, ChainError> {
        let image = FileStorage::open(path)?;
        let top = BackingReference { path: path.to_path_buf(), name: String::new(), format };
        let (layer, _) = layer(top, image, Follow::Nothing)?;
        Ok(Self { layers: vec![layer] })
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

    /// Returns the path of the file that holds the data of the layer at `depth`.
    pub fn data_path(&self, depth: u32) -> Option<&Path> {
        let layer = self.layers.get(usize::try_from(depth).ok()?)?;
        Some(layer.data_file.as_ref().map_or(&layer.path, |file| &file.path))
    }

    /// Returns the path of the image of the layer at `depth`.
    pub fn image_path(&self, depth: u32) -> Option<&Path> {
        Some(&self.layers.get(usize::try_from(depth).ok()?)?.path)
    }
}

/// Returns the layer of an open image, and the reference to its backing file, if it has one.
fn layer(
    below: BackingReference,
    image: FileStorage,
    follow: Follow,
) -> Result<(FileLayer, Option<BackingReference>), ChainError> {
    let BackingReference { path, format, .. } = below;
    let image_error = |error| ChainError::Image { path: path.clone(), error };
    let format = match format {
        Some(format) => format,
        // QEMU recognises these images by their names alone (`block/dmg.c`, `dmg_probe`).
        None if path.as_os_str().as_encoded_bytes().ends_with(b".dmg") => {
            return Err(image_error(MapError::Unsupported("image in the format dmg")));
        }
        None => probe(&image).map_err(image_error)?,
    };
    if format != ImageFormat::Qcow2 {
        return Ok((FileLayer { format, path, image, data_file: None }, None));
    }
    let head = Head::read(&image).map_err(image_error)?;
    let data_file = match head.header.geometry.data_file {
        false => None,
        true => Some(data_file(&path, &image, &head, follow)?),
    };
    let named = match head.backing_name {
        Some(field) if follow == Follow::All => {
            let format = head.backing_format_in(&image).map_err(image_error)?;
            let name = plain(&path, name(&path, &image, field)?)?;
            let path = beside(&path, &name);
            Some(BackingReference { path, name: name.to_string_lossy().into_owned(), format })
        }
        _ => None,
    };
    Ok((FileLayer { format, path, image, data_file }, named))
}

/// Opens the data file of the image at `path`.
fn data_file(
    path: &Path,
    image: &FileStorage,
    head: &Head,
    follow: Follow,
) -> Result<DataFile, ChainError> {
    let Some(field) = head.data_file else {
        let error = MapError::Missing("name of the external data file");
        return Err(ChainError::Image { path: path.to_path_buf(), error });
    };
    // QEMU opens these names literally, including colons.
    let file = beside(path, &name(path, image, field)?);
    let storage = match follow {
        Follow::Nothing => None,
        Follow::All => Some(FileStorage::open(&file).map_err(|error| {
            let path = path.to_path_buf();
            ChainError::Named { path, what: DATA_FILE, error }
        })?),
    };
    Ok(DataFile { path: file, storage })
}

/// Reads the name in `field`, up to its first zero byte.
fn name(path: &Path, image: &FileStorage, field: Field) -> Result<OsString, ChainError> {
    let image_error = |error| ChainError::Image { path: path.to_path_buf(), error };
    let length = usize::try_from(field.length_bytes);
    let length = length.map_err(|_| image_error(MapError::TooLarge("name of a file")))?;
    let mut bytes = vec![0; length];
    image.read_at(field.offset, &mut bytes).map_err(|error| image_error(error.into()))?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let name = &bytes[..end];
    Ok(OsStr::from_bytes(name).to_os_string())
}

/// Returns the name of a backing file, if it has no protocol. As in QEMU, the text before a colon is a protocol if the
/// colon comes before the first slash (`block.c`, `path_has_protocol`).
fn plain(path: &Path, name: OsString) -> Result<OsString, ChainError> {
    let mut bytes = name.as_bytes().iter();
    match bytes.find(|byte| matches!(byte, b':' | b'/')) {
        Some(b':') => {
            let name = name.to_string_lossy().into_owned();
            Err(ChainError::Protocol { path: path.to_path_buf(), name })
        }
        _ => Ok(name),
    }
}

/// Returns the path of the file that the image at `image` calls `name`.
fn beside(image: &Path, name: &OsStr) -> PathBuf {
    match image.parent() {
        Some(directory) => directory.join(name),
        None => PathBuf::from(name),
    }
}
