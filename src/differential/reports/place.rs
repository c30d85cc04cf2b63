//! Puts the folder of a report in its place, so that a whole report is there at any moment.

use std::fs;
use std::io;
use std::path::Path;

/// Moves a folder to `path`. If a folder is there, both change places, and the older one is removed.
pub(super) fn put(staged: &Path, path: &Path) -> io::Result<()> {
    match fs::rename(staged, path) {
        Err(_) if path.exists() => {}
        renamed => return renamed,
    }
    if exchange(staged, path).is_err() {
        // The file system cannot exchange two names. Between these two calls, the report is missing.
        fs::remove_dir_all(path)?;
        return fs::rename(staged, path);
    }
    fs::remove_dir_all(staged)
}

#[cfg(target_os = "linux")]
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
