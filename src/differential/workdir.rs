//! The folders of a campaign, and the files in them. Each campaign creates a subfolder in the folder in which it works,
//! and another one in the folder of its reports. It locks both, and removes them at its end. The next campaign removes
//! the subfolders of campaigns that were killed, and nothing else.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::divergence::{Divergence, DivergenceKind};
use crate::base::error::Error;
use crate::processes::end_below;
use crate::recipes::RecipeError;

/// The beginning of the names of subfolders.
const PREFIX: &str = "qcowfuzz-differential-";
/// The beginning of the names of subfolders whose files are not complete.
const INCOMPLETE_PREFIX: &str = ".qcowfuzz-";

/// A subfolder of a running campaign. Dropping it removes it.
#[derive(Debug)]
pub struct WorkFolder {
    path: PathBuf,
    /// The subfolder itself, open and locked as long as the campaign runs.
    _lock: File,
}

impl WorkFolder {
    /// Removes the subfolders of killed campaigns from `dir`, and creates a new one. Creates `dir` if it is missing.
    ///
    /// # Errors
    /// A folder cannot be created, or one that a killed campaign left cannot be removed.
    pub fn create(dir: &Path) -> Result<Self, Error> {
        Self::named(PREFIX, dir)
    }

    /// Creates a hidden subfolder for files that are not complete. Otherwise, it does the same as
    /// [`WorkFolder::create`].
    pub(super) fn incomplete(dir: &Path) -> Result<Self, Error> {
        Self::named(INCOMPLETE_PREFIX, dir)
    }

    fn named(prefix: &str, dir: &Path) -> Result<Self, Error> {
        fs::create_dir_all(dir).map_err(|error| Error::file(dir, error))?;
        // Commands name files by their absolute paths.
        let dir = dir.canonicalize().map_err(|error| Error::file(dir, error))?;
        // Two campaigns that begin at the same time must not take each other's subfolders for leftovers.
        let _turn = locked(&dir)?;
        remove_leftovers(prefix, &dir)?;
        let made = tempfile::Builder::new().prefix(prefix).tempdir_in(&dir);
        let path = made.map_err(|error| Error::file(&dir, error))?.keep();
        let lock = locked(&path)?;
        Ok(Self { path, _lock: lock })
    }

    /// Returns the path of the subfolder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the folder in which job number `job` works.
    pub fn path_of(&self, job: usize) -> PathBuf {
        self.path.join(format!("job-{job}"))
    }

    /// Returns the folder in which job number `job` works, empty.
    ///
    /// # Errors
    /// The folder cannot be emptied or created.
    pub fn job(&self, job: usize) -> Result<PathBuf, Error> {
        let path = self.path_of(job);
        emptied(&path).map(|()| path)
    }
}

/// Empties a folder, or creates it.
pub(super) fn emptied(path: &Path) -> Result<(), Error> {
    let emptied = match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir(path),
    };
    emptied.map_err(|error| Error::file(path, error))
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        // The next campaign removes what cannot be removed now.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the subfolders of campaigns that no longer run, after the last processes of these have ended.
fn remove_leftovers(prefix: &str, dir: &Path) -> Result<(), Error> {
    let in_dir = |error| Error::file(dir, error);
    for entry in dir.read_dir().map_err(in_dir)? {
        let path = entry.map_err(in_dir)?.path();
        let is_ours =
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
        if is_ours && path.is_dir() && is_abandoned(&path) {
            end_below(&path);
            fs::remove_dir_all(&path).map_err(|error| Error::file(&path, error))?;
        }
    }
    Ok(())
}

/// Opens a folder and locks it, once no other process has it locked.
fn locked(dir: &Path) -> Result<File, Error> {
    let opened = File::open(dir).and_then(|folder| folder.lock().map(|()| folder));
    opened.map_err(|error| Error::file(dir, error))
}

/// Reports whether no running campaign holds the lock of a subfolder.
fn is_abandoned(path: &Path) -> bool {
    File::open(path).is_ok_and(|folder| !matches!(folder.try_lock(), Err(TryLockError::WouldBlock)))
}

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

/// Removes a file, if it is there.
pub(super) fn remove(path: &Path) -> Result<(), RecipeError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(RecipeError::file(path, error))
        }
        _ => Ok(()),
    }
}

/// Returns the files in a folder and in the folders below it, in the order of their paths.
pub fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => files.extend(files_below(&entry.path())?),
            false => files.push(entry.path()),
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_folders_of_killed_campaigns_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let running = WorkFolder::create(dir.path()).unwrap();
        let killed = WorkFolder::create(dir.path()).unwrap();
        let left = killed.path.clone();
        fs::write(killed.job(0).unwrap().join("disk"), "data").unwrap();
        // The lock goes with the process, and the folder stays.
        let WorkFolder { path, _lock } = &killed;
        _lock.unlock().unwrap();
        let mine = dir.path().join("mine");
        fs::write(&mine, "mine").unwrap();
        assert!(path.is_dir() && running.path.is_dir());
        let next = WorkFolder::create(dir.path()).unwrap();
        assert!(!left.exists() && running.path.is_dir() && next.path.is_dir() && mine.is_file());
        drop((running, next));
        let rest: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(rest, [mine]);
    }

    #[test]
    fn files_are_found_in_folders_too() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "lower/b", "z"].map(|name| dir.path().join(name));
        fs::create_dir(dir.path().join("lower")).unwrap();
        paths.iter().rev().for_each(|path| fs::write(path, "").unwrap());
        assert_eq!(files_below(dir.path()).unwrap(), paths);
    }
}
