//! Opens the files of an image and of all images below it, by the names that the images contain.
//!
//! A name is the name of a plain file. A relative name is resolved against the directory of the image that contains it.
//! (QEMU 10.0.2 resolves the name of a data file against the current directory instead, so that the file depends on
//! where the command is started.) Names with a protocol (`json:`, `nbd://`, `file:`) are refused: an image must not
//! open anything but a file of this machine.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::error::FileError;
use crate::disk::image_format::ImageFormat;
use crate::disk::limits::MAX_FILE_LAYERS;
use crate::disk::storage::{FileId, FileStorage, Layer};
use crate::formats::error::MapError;
use crate::formats::qcow2::head::{Field, Head};
use crate::formats::{Identity, ImageLayout, has_unread_parent, probe};
use crate::walkers::disk::Disk;

/// The files of a chain of images, the top image first.
#[derive(Debug)]
pub struct FileChain {
    layers: Vec<FileLayer>,
    follow: Follow,
}

impl FileChain {
    /// Opens the image at `path`, which may be a block device, and all files that it and the images below it name. If
    /// `format` is `None`, the format of the image is probed.
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
        let image = match &above {
            None => FileStorage::open_with_devices(&below.path)?,
            Some(path) => open_named(path, BACKING_FILE, &below.path)?,
        };
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
        let image = FileStorage::open_with_devices(path)?;
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

    /// Returns the paths of the images that have a parent which is not read ([`has_unread_parent`]).
    pub fn unread_parents(&self) -> impl Iterator<Item = &Path> {
        let has_one = |layer: &&FileLayer| {
            // An image that cannot be read is reported elsewhere.
            has_unread_parent(layer.format, &layer.image).unwrap_or(false)
        };
        self.layers.iter().filter(has_one).map(|layer| layer.path.as_path())
    }

    /// Returns the path of the image of the layer at `depth`.
    pub fn image_path(&self, depth: u32) -> Option<&Path> {
        Some(&self.layers.get(usize::try_from(depth).ok()?)?.path)
    }
}

/// An open layer.
#[derive(Debug)]
struct FileLayer {
    format: ImageFormat,
    path: PathBuf,
    image: FileStorage,
    data_file: Option<DataFile>,
    /// Empty if names are not followed.
    extents: ExtentFiles,
}

#[derive(Debug)]
struct DataFile {
    path: PathBuf,
    /// `None` if names are not followed.
    storage: Option<FileStorage>,
}

/// The names that are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Follow {
    All,
    Nothing,
}

/// The reference of an image to the image below it.
struct BackingReference {
    path: PathBuf,
    name: String,
    format: Option<ImageFormat>,
}

impl FileLayer {
    /// Opens the other files of the layer of an open image. Returns the reference to its backing file, too, if it has
    /// one.
    fn open(
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
            _ if format.facts().has_extents => layer.with_files_of_extents(follow),
            // Images of the other formats are one file.
            _ => Ok((layer, None)),
        }
    }

    /// Returns the files of the layer.
    fn files(&self) -> Layer<'_, FileStorage> {
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

    fn with_files_of_extents(
        mut self,
        follow: Follow,
    ) -> Result<(Self, Option<BackingReference>), ChainError> {
        let layout = ImageLayout::read(&self.image).map_err(|error| self.error(error))?;
        if follow == Follow::Nothing {
            return Ok((self, None));
        }
        self.extents = ExtentFiles::open(&self.path, &layout)?;
        let identity = Identity::read(&self.image, &layout).map_err(|error| self.error(error))?;
        let named = identity.parent_name.map(|name| self.backing(&name, Some(self.format)));
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

/// The paths and the files of the extents, in the order of the image. Extents with the same path share the file.
#[derive(Debug, Default)]
pub struct ExtentFiles {
    paths: Vec<PathBuf>,
    /// The files.
    pub files: Vec<Arc<FileStorage>>,
}

impl ExtentFiles {
    /// Opens the files that the image at `image` names.
    ///
    /// # Errors
    /// A file cannot be opened, or its name is refused.
    pub fn open(image: &Path, layout: &ImageLayout) -> Result<Self, ChainError> {
        let mut opened = Self::default();
        for extent in layout.extents() {
            let path = beside(image, plain(image, EXTENT_FILE, &extent.name)?);
            // Names are compared as they are: QEMU never joins data of two names.
            let mut known = opened.paths.iter().zip(&opened.files);
            let known = known.find(|known| known.0.as_os_str() == path.as_os_str());
            let file = match known {
                Some((_, file)) => file.clone(),
                None => Arc::new(open_named(image, EXTENT_FILE, &path)?),
            };
            opened.paths.push(path);
            opened.files.push(file);
        }
        Ok(opened)
    }
}

/// The purposes of files that an image names.
const BACKING_FILE: &str = "backing file";
const DATA_FILE: &str = "data file";
const EXTENT_FILE: &str = "file of an extent";

/// Reads the name in `field` of a qcow2 image, up to its first zero byte.
fn stored_name(path: &Path, image: &FileStorage, field: Field) -> Result<OsString, ChainError> {
    let image_error = |error| ChainError::Image { path: path.to_path_buf(), error };
    Ok(OsString::from_vec(field.name_in(image).map_err(image_error)?))
}

/// Reports whether a name has a protocol: a colon before the first slash (QEMU `block.c`, `path_has_protocol`).
pub fn has_protocol(name: &[u8]) -> bool {
    name.iter().find(|byte| matches!(byte, b':' | b'/')) == Some(&b':')
}

/// Returns a name in the image at `path`, if the name has no protocol.
fn plain<'n>(path: &Path, what: &'static str, name: &'n [u8]) -> Result<&'n OsStr, ChainError> {
    let name = OsStr::from_bytes(name);
    match has_protocol(name.as_bytes()) {
        true => {
            let name = name.to_string_lossy().into_owned();
            Err(ChainError::Protocol { path: path.to_path_buf(), what, name })
        }
        false => Ok(name),
    }
}

/// Opens the file at `file`, which the image at `image` names.
fn open_named(image: &Path, what: &'static str, file: &Path) -> Result<FileStorage, ChainError> {
    FileStorage::open(file).map_err(|error| {
        let path = image.to_path_buf();
        ChainError::Named { path, what, error }
    })
}

/// Returns the path of the file that the image at `image` calls `name`.
fn beside(image: &Path, name: &OsStr) -> PathBuf {
    match image.parent() {
        Some(directory) => directory.join(name),
        None => PathBuf::from(name),
    }
}

/// The reason why a chain could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The top image could not be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file that an image names could not be opened.
    #[error("{path}: the {what} that it names: {error}", path = path.display())]
    Named {
        /// The image that contains the name.
        path: PathBuf,
        /// The purpose of the file.
        what: &'static str,
        /// The reason why it could not be opened.
        error: FileError,
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
        "{path}: the {what} '{name}' names a protocol, expected the name of a file",
        path = path.display()
    )]
    Protocol {
        /// The image that contains the name.
        path: PathBuf,
        /// The purpose of the file.
        what: &'static str,
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
