//! Names of files in images.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::disk::storage::FileStorage;
use crate::formats::qcow2::head::Field;

use super::error::ChainError;

/// The purposes of files that an image names.
pub(super) const BACKING_FILE: &str = "backing file";
pub(super) const DATA_FILE: &str = "data file";
pub(super) const EXTENT_FILE: &str = "file of an extent";

/// Reads the name in `field` of a qcow2 image, up to its first zero byte.
pub(super) fn stored_name(
    path: &Path,
    image: &FileStorage,
    field: Field,
) -> Result<OsString, ChainError> {
    let image_error = |error| ChainError::Image { path: path.to_path_buf(), error };
    Ok(OsString::from_vec(field.name_in(image).map_err(image_error)?))
}

/// Reports whether a name has a protocol: a colon before the first slash (QEMU `block.c`, `path_has_protocol`).
pub fn has_protocol(name: &[u8]) -> bool {
    name.iter().find(|byte| matches!(byte, b':' | b'/')) == Some(&b':')
}

/// Returns a name in the image at `path`, if the name has no protocol.
pub(super) fn plain<'n>(
    path: &Path,
    what: &'static str,
    name: &'n [u8],
) -> Result<&'n OsStr, ChainError> {
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
pub(super) fn open_named(
    image: &Path,
    what: &'static str,
    file: &Path,
) -> Result<FileStorage, ChainError> {
    FileStorage::open(file).map_err(|error| {
        let path = image.to_path_buf();
        ChainError::Named { path, what, error }
    })
}

/// Returns the path of the file that the image at `image` calls `name`.
pub(super) fn beside(image: &Path, name: &OsStr) -> PathBuf {
    match image.parent() {
        Some(directory) => directory.join(name),
        None => PathBuf::from(name),
    }
}
