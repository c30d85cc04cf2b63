//! The lengths and times of the files of a disk: no question may change a file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::divergence::{Divergence, DivergenceKind};
use crate::recipes::RecipeError;
use crate::recipes::names::files_below;

/// The path, the length and the time of the last change of each file of a folder.
pub(super) type Stamps = Vec<(PathBuf, u64, SystemTime)>;

/// Returns the stamps of the files below a folder, by path.
pub(super) fn stamps(folder: &Path) -> Result<Stamps, RecipeError> {
    let failed = |error| RecipeError::file(folder, error);
    let files = files_below(folder).map_err(failed)?;
    let stamp = |path: PathBuf| {
        let metadata = fs::symlink_metadata(&path)?;
        Ok((path, metadata.len(), metadata.modified()?))
    };
    files.into_iter().map(stamp).collect::<io::Result<_>>().map_err(failed)
}

/// Calls fsync on all files below a folder. Before that, the file system may turn holes into zeros, and a map changes.
pub(super) fn settle(folder: &Path) -> io::Result<()> {
    for path in files_below(folder)? {
        if path.is_file() {
            fs::File::open(path)?.sync_all()?;
        }
    }
    Ok(())
}

/// Compares the stamps before and after the answer of a side.
pub(super) fn unchanged(side: &str, before: &Stamps, after: &Stamps) -> Result<(), Divergence> {
    match before == after {
        true => Ok(()),
        false => {
            let is_new = |stamp: &&_| !before.contains(stamp);
            let is_gone = |stamp: &&_| !after.contains(stamp);
            let changed = after.iter().find(is_new).or(before.iter().find(is_gone));
            Err(Divergence::new(DivergenceKind::FileChanged, side, format!("{changed:?}")))
        }
    }
}
