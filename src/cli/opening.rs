//! Opening images: the format, and messages about files that cannot be opened.

use std::path::Path;

use qcowfuzz::disk::storage::FileStorage;
use qcowfuzz::internal::formats::qcow2::error::MapError;
use qcowfuzz::walkers::chain::ChainError;

use super::exit::Failure;

/// Whether `format` (what `-f` says) is one that is read here.
pub fn check_format(path: &Path, format: Option<&str>) -> Result<(), Failure> {
    match format {
        None | Some("qcow2") => Ok(()),
        Some(other) => Err(Failure::at(
            path,
            format_args!("format '{other}' is not supported, expected qcow2"),
        )),
    }
}

/// Why the chain of the image at `path` could not be opened.
pub fn not_opened(path: &Path, error: ChainError) -> Failure {
    match error {
        ChainError::Image { path: of, error } if of == path => match FileStorage::open(path) {
            Ok(storage) => malformed(path, &storage, &error),
            Err(error) => error.into(),
        },
        ChainError::File(error) => error.into(),
        error => Failure::Told(error.to_string()),
    }
}

/// What is wrong with an image, with a word on its file where that explains it.
pub fn malformed(path: &Path, storage: &FileStorage, error: &MapError) -> Failure {
    use qcowfuzz::disk::storage::Storage;
    use qcowfuzz::internal::formats::qcow2::constants::V3_LENGTH_BYTES;
    let length = storage.length_bytes();
    match error {
        MapError::NotQcow2 { .. } if length == 0 => {
            Failure::at(path, "not a qcow2 image: the file is empty")
        }
        MapError::NotQcow2 { .. } | MapError::Header { .. }
            if length < u64::from(V3_LENGTH_BYTES) =>
        {
            Failure::at(path, format_args!("{error} (the file ends after {length} bytes)"))
        }
        error => Failure::at(path, error),
    }
}
