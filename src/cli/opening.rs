//! Checks the format of images, and explains why an image cannot be opened.

use std::path::Path;

use crate::disk::image_format::ImageFormat;
use crate::disk::storage::FileStorage;
use crate::formats::error::MapError;
use crate::walkers::chain::ChainError;

use super::exit::CommandError;

/// Rejects a `format` (the value of `-f`) that is not supported.
pub fn check_format(path: &Path, format: Option<&str>) -> Result<(), CommandError> {
    match format {
        None | Some("qcow2") => Ok(()),
        Some(other) => Err(CommandError::at(
            path,
            format_args!("format '{other}' is not supported, expected qcow2"),
        )),
    }
}

/// Returns the format that `format` (the value of `-f`) names, or `None` without one.
pub fn named_format(
    path: &Path,
    format: Option<&str>,
) -> Result<Option<ImageFormat>, CommandError> {
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

/// Returns the failure of opening the chain of the image at `path`.
pub fn not_opened(path: &Path, error: ChainError) -> CommandError {
    match error {
        ChainError::Image { path: of, error } if of == path => match FileStorage::open(path) {
            Ok(storage) => malformed(path, &storage, &error),
            Err(error) => error.into(),
        },
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
