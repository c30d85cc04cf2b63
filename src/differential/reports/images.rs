//! Copies the images of a report, with their holes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::base::error::Error;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{FileStorage, Storage};
use crate::recipes::names::files_below;

/// The most bytes of an image that a report keeps. Holes do not count.
const MAX_IMAGE_BYTES: u64 = 64 << 20;
/// The bytes that are copied at once.
const STORED_PIECE_BYTES: usize = 256 << 10;

/// Copies the images of a folder, and notes the names of those that are too long. Without the folder, there are none.
pub(super) fn copy_images(from: &Path, to: &Path, left_out: &mut Vec<String>) -> Result<(), Error> {
    fs::create_dir(to).map_err(|error| Error::file(to, error))?;
    if !from.exists() {
        return Ok(());
    }
    for path in files_below(from).map_err(|error| Error::file(from, error))? {
        let name = path.strip_prefix(from).unwrap_or(&path);
        let source = FileStorage::open(&path)?;
        if source.allocated_bytes().is_some_and(|bytes| bytes > MAX_IMAGE_BYTES) {
            left_out.push(name.to_string_lossy().into_owned());
            continue;
        }
        let target = to.join(name);
        let copied =
            fs::create_dir_all(target.parent().unwrap_or(to)).and_then(|()| copy(&source, &target));
        copied.map_err(|error| Error::file(&target, error))?;
    }
    Ok(())
}

fn copy(source: &FileStorage, target: &Path) -> std::io::Result<()> {
    let file = File::create(target)?;
    file.set_len(source.length_bytes())?;
    let (mut at, end) = (HostOffset::ZERO, HostOffset::new(source.length_bytes()));
    let mut piece = vec![0; STORED_PIECE_BYTES];
    while at < end {
        let part = source.stored(at, end).map_err(std::io::Error::other)?;
        let length = part.end.get().saturating_sub(at.get()).min(STORED_PIECE_BYTES as u64);
        if part.stored {
            let bytes = piece.get_mut(..length as usize).unwrap_or_default();
            source.read_at(at, bytes).map_err(std::io::Error::other)?;
            file.write_all_at(bytes, at.get())?;
            at += length;
        } else {
            at = part.end;
        }
    }
    Ok(())
}
