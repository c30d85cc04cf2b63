//! The lengths and times of the files of a disk: no question may change a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::divergence::{Divergence, DivergenceKind};
use super::perform::{IterationError, file_error};

/// The name, the length and the time of the last change of each file of a folder.
pub(super) type Stamps = Vec<(PathBuf, u64, SystemTime)>;

/// Returns the stamps of the files of a folder, by name.
pub(super) fn stamps(folder: &Path) -> Result<Stamps, IterationError> {
    let failed = |error| file_error(folder, error);
    let mut stamps = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let metadata = entry.metadata().map_err(failed)?;
        let modified = metadata.modified().map_err(failed)?;
        stamps.push((entry.path(), metadata.len(), modified));
    }
    stamps.sort();
    Ok(stamps)
}

/// Calls fsync on all files of a folder. Before that, the file system may turn holes into zeros, and a map changes.
pub(super) fn settle(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
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
