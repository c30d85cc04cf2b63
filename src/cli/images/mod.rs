//! The commands that qemu-img has, too, with the functions that they share: they open an image in the format that `-f`
//! names, and explain why it cannot be opened.

pub(super) mod check;
pub(super) mod convert;
pub(crate) mod info;
pub(super) mod map;
pub(crate) mod measure;

use std::fmt::Display;
use std::path::Path;

use crate::cli::output::{CommandError, complain};
use crate::disk::image_format::ImageFormat;
use crate::disk::storage::{FileStorage, Layer};
use crate::formats::error::MapError;
use crate::formats::{ImageLayout, has_unread_parent};
use crate::walkers::Disk;
use crate::walkers::chain::{ChainError, ExtentFiles, FileChain, format_of};

/// Returns the format that `format` (the value of `-f`) names, or `None` without one.
fn named_format(path: &Path, format: Option<&str>) -> Result<Option<ImageFormat>, CommandError> {
    let Some(name) = format else { return Ok(None) };
    match ImageFormat::named(name.as_bytes()) {
        Some(format) => Ok(Some(format)),
        None => {
            let names = ImageFormat::ALL.map(ImageFormat::name).join(", ");
            let what = format_args!("format '{name}' is not supported, expected one of {names}");
            Err(CommandError::at(path, what))
        }
    }
}

/// Opens the files of the image at `path`, and of the images below it. `format` is the value of `-f`.
pub fn open_chain(path: &Path, format: Option<&str>) -> Result<FileChain, CommandError> {
    let format = named_format(path, format)?;
    FileChain::open(path, format).map_err(|error| not_opened(path, error))
}

/// Opens only the image at `path`, and none of the files that it names. `format` is the value of `-f`.
pub fn open_alone(path: &Path, format: Option<&str>) -> Result<FileChain, CommandError> {
    let format = named_format(path, format)?;
    FileChain::alone(path, format).map_err(|error| not_opened(path, error))
}

/// The file of an image, and the files of its extents.
pub struct ImageFile {
    /// The image.
    pub storage: FileStorage,
    /// The format of the image.
    pub format: ImageFormat,
    extents: ExtentFiles,
}

impl ImageFile {
    /// Opens the file or the block device of the image at `path`, and the files of its extents, which few formats
    /// have. It opens no other file that the image names. `format` is the value of `-f`; `no_follow` refuses an image
    /// with such files.
    pub fn open(path: &Path, format: Option<&str>, no_follow: bool) -> Result<Self, CommandError> {
        let format = named_format(path, format)?;
        let storage = FileStorage::open_with_devices(path)?;
        let refused = |error| CommandError::at(path, error);
        let format = format_of(path, &storage, format).map_err(refused)?;
        let mut extents = ExtentFiles::default();
        if format.facts().has_extents {
            let layout = ImageLayout::read(&storage).map_err(refused)?;
            if no_follow && !layout.extents().is_empty() {
                return Err(not_followed(path, "open", "the files of its extents"));
            }
            extents = ExtentFiles::open(path, &layout).map_err(|error| not_opened(path, error))?;
        }
        Ok(Self { storage, format, extents })
    }

    /// Warns if the image, which is at `path`, has a parent that is not read.
    pub fn warn_of_parent(&self, path: &Path) {
        // An image that cannot be read is reported elsewhere.
        if has_unread_parent(self.format, &self.storage).unwrap_or(false) {
            warn_of_parent(path);
        }
    }

    /// Returns the image and its extents as a layer.
    pub fn layer(&self) -> Layer<'_, FileStorage> {
        Layer { extents: &self.extents.files, ..Layer::alone(&self.storage) }
    }
}

/// Opens the disk of the image at `path`. Warns of images with a parent that is not read.
pub fn open_disk<'c>(
    chain: &'c FileChain,
    path: &Path,
) -> Result<Disk<'c, FileStorage>, CommandError> {
    let disk = chain.disk().map_err(|error| at_layer(chain, path, &error))?;
    chain.unread_parents().for_each(warn_of_parent);
    Ok(disk)
}

/// Opens the disk of an image that was opened with `--no-follow`, for the command `verb`.
pub fn open_disk_alone<'c>(
    chain: &'c FileChain,
    path: &Path,
    verb: &str,
) -> Result<Disk<'c, FileStorage>, CommandError> {
    let disk = chain.disk().map_err(|error| match error {
        MapError::Missing(what) => not_followed(path, verb, format_args!("the {what}")),
        error => at_layer(chain, path, &error),
    })?;
    chain.unread_parents().for_each(warn_of_parent);
    Ok(disk)
}

/// Warns that the image at `path` has a parent that is not read.
fn warn_of_parent(path: &Path) {
    let path = path.display();
    complain(&format!(
        "{path}: warning: the parent of this image is not read, so its data read as zeros, as in QEMU"
    ));
}

/// Returns the failure of an image that needs other files than its own, with `--no-follow`.
pub fn not_followed(path: &Path, verb: &str, needed: impl Display) -> CommandError {
    let what = format_args!("cannot {verb} the image with --no-follow: it needs {needed}");
    CommandError::at(path, what)
}

/// Returns the failure of a walk. The message names the faulty image of the chain.
pub fn at_layer(chain: &FileChain, path: &Path, error: &MapError) -> CommandError {
    let (depth, error) = error.located();
    CommandError::at(chain.image_path(depth).unwrap_or(path), error)
}

/// Returns the failure of opening the chain of the image at `path`.
fn not_opened(path: &Path, error: ChainError) -> CommandError {
    match error {
        ChainError::Image { path: of, error } if of == path => {
            match FileStorage::open_with_devices(path) {
                Ok(storage) => malformed(path, &storage, &error),
                Err(error) => error.into(),
            }
        }
        ChainError::File(error) => error.into(),
        error => CommandError::Message(error.to_string()),
    }
}

/// Returns the failure of a malformed image. If the file is too short for a header, the message states its length.
pub fn malformed(path: &Path, storage: &FileStorage, error: &MapError) -> CommandError {
    use crate::disk::storage::Storage;
    use crate::formats::qcow2::constants::V3_LENGTH_BYTES;
    let length = storage.length_bytes();
    match error {
        MapError::NotQcow2 { .. } if length == 0 => {
            CommandError::at(path, "not a qcow2 image: the file is empty")
        }
        MapError::NotQcow2 { .. } | MapError::Header { .. }
            if length < u64::from(V3_LENGTH_BYTES) =>
        {
            CommandError::at(path, format_args!("{error} (the file ends after {length} bytes)"))
        }
        error => CommandError::at(path, error),
    }
}
