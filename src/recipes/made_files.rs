//! The files that QEMU has made, as it names them, in memory.
//!
//! # Arithmetic
//! A length that passes 2^64 is longer than any limit.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::base::file_parts::MAX_EXTENT_FILES;
use crate::base::limits::MAX_LAYERS;
use crate::disk::error::StorageError;
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{FileStorage, GRAIN_BYTES, PIECE_BYTES, Storage, each_data};
use crate::images::files::{Images, LayerFiles};
use crate::images::image::Image;
use crate::processes::Reply;

use super::error::RecipeError;
use super::recipe::AskedDisk;

/// The highest number of bytes of all files that are not zeros.
const MAX_TAKEN_BYTES: u64 = 48 << 20;
/// The unit of holes. Zeros of this length in a file count as a hole, so that the file system has no say in it.
const SMALLEST_HOLE_BYTES: usize = 4096;

/// The files that were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// None: there are no files, they are too many or too large, or the names do not lead to them from another folder.
    Nothing,
    /// The image at the top alone: QEMU does not open it.
    Alone,
    /// All images, with the files beside them.
    Chain,
}

/// An image of a chain, as `qemu-img info` describes it.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ImageJson {
    filename: String,
    format: String,
    format_specific: Option<OwnFormatJson>,
}

/// The fields that only some formats have.
#[derive(Deserialize)]
struct OwnFormatJson {
    data: DataJson,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct DataJson {
    data_file: Option<String>,
    #[serde(default)]
    data_file_raw: bool,
    #[serde(default)]
    extents: Vec<ExtentJson>,
}

#[derive(Deserialize)]
struct ExtentJson {
    filename: String,
}

/// Takes the files of a disk in `folder`, which `info`, the answer of `qemu-img info --backing-chain`, describes.
pub(super) fn take(
    info: &Reply,
    disk: &AskedDisk,
    folder: &Path,
    images: &mut Images,
) -> Result<Taken, RecipeError> {
    let folder = folder.canonicalize().map_err(|error| RecipeError::file(folder, error))?;
    let mut taking = Taking { folder, left: MAX_TAKEN_BYTES };
    if !info.is_success() {
        let format = disk.format.as_deref().unwrap_or("qcow2");
        let top = ImageJson {
            filename: disk.file.clone(),
            format: format.to_string(),
            format_specific: None,
        };
        let is_taken = taking.layers(&[top], images)?;
        return Ok(if is_taken { Taken::Alone } else { Taken::Nothing });
    }
    let chain: Vec<ImageJson> = serde_json::from_slice(&info.stdout).map_err(|error| {
        RecipeError::Recipe(format!("qemu-img info: {error}, expected a list of images"))
    })?;
    let is_taken = taking.layers(&chain, images)?;
    Ok(if is_taken { Taken::Chain } else { Taken::Nothing })
}

/// Files that are being taken.
struct Taking {
    folder: PathBuf,
    /// The bytes that may be taken.
    left: u64,
}

impl Taking {
    /// Takes a chain, the image at the top first. Returns false if it cannot be taken.
    fn layers(&mut self, chain: &[ImageJson], images: &mut Images) -> Result<bool, RecipeError> {
        if chain.is_empty() || chain.len() > MAX_LAYERS {
            return Ok(false);
        }
        images.resize(chain.len());
        images.set_unchanged(0);
        for (height, image) in chain.iter().rev().enumerate() {
            if !self.layer(image, images.layer_mut(height))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn layer(&mut self, image: &ImageJson, files: &mut LayerFiles) -> Result<bool, RecipeError> {
        let Some(format) = ImageFormat::named(image.format.as_bytes()) else { return Ok(false) };
        let Some((path, name)) = self.place_of(&image.filename) else { return Ok(false) };
        files.begin(format);
        files.name.clone_from(&name);
        if !self.file(&path, format == ImageFormat::Raw, &mut files.image)? {
            return Ok(false);
        }
        let Some(OwnFormatJson { data }) = &image.format_specific else { return Ok(true) };
        if let Some(named) = &data.data_file {
            // QEMU looks for it in the current folder, and other readers in that of the image.
            let place = self.place_of(named).filter(|_| !name.contains('/'));
            let Some((path, name)) = place else { return Ok(false) };
            (files.has_data_file, files.data_file_is_raw) = (true, data.data_file_raw);
            files.data_file_name = name;
            if !self.file(&path, false, &mut files.data_file)? {
                return Ok(false);
            }
        }
        let beside = data.extents.iter().filter_map(|extent| {
            let there = self.place_of(&extent.filename);
            (there.as_ref().map(|(path, _)| path) != Some(&path)).then_some(there)
        });
        let beside: Vec<_> = beside.collect();
        if beside.len() > MAX_EXTENT_FILES {
            return Ok(false);
        }
        for (nth, place) in beside.into_iter().enumerate() {
            let Some((path, name)) = place else { return Ok(false) };
            if let Some(named) = files.extent_names.get_mut(nth) {
                *named = name;
            }
            if !self.file(&path, false, files.extents.add())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the path of a file that QEMU names, and its name in the folder. A file elsewhere has none.
    fn place_of(&self, named: &str) -> Option<(PathBuf, String)> {
        let path = self.folder.join(named).canonicalize().ok()?;
        let name = path.strip_prefix(&self.folder).ok()?.to_str()?.to_string();
        Some((path, name))
    }

    /// Takes a file. Returns false if it is too large.
    fn file(
        &mut self,
        path: &Path,
        has_holes: bool,
        into: &mut Image,
    ) -> Result<bool, RecipeError> {
        let failed = |error: String| RecipeError::file(path, std::io::Error::other(error));
        let file = FileStorage::open(path).map_err(|error| failed(error.to_string()))?;
        into.clear();
        if has_holes {
            into.stored.begin();
        }
        let length_bytes = file.length_bytes();
        let end = length_bytes.checked_next_multiple_of(GRAIN_BYTES).unwrap_or(u64::MAX);
        let mut scratch = vec![0; PIECE_BYTES];
        let range = HostOffset::ZERO..HostOffset::new(end);
        let taken = each_data::<_, StorageError>(&file, range, &mut scratch, |data| {
            let pieces = data.bytes.chunks(SMALLEST_HOLE_BYTES).enumerate();
            for (nth, piece) in pieces.filter(|(_, piece)| piece.iter().any(|byte| *byte != 0)) {
                let at = data.offset + (nth * SMALLEST_HOLE_BYTES) as u64;
                let there = length_bytes.saturating_sub(at.get()).min(piece.len() as u64);
                let Some(left) = self.left.checked_sub(there) else {
                    return Ok(ControlFlow::Break(()));
                };
                self.left = left;
                into.write(at, piece.get(..there as usize).unwrap_or_default());
                into.stored.add(at, SMALLEST_HOLE_BYTES as u64);
            }
            Ok(ControlFlow::Continue(()))
        });
        let taken = taken.map_err(|error| failed(error.to_string()))?;
        into.seal(length_bytes);
        Ok(taken.is_continue())
    }
}
