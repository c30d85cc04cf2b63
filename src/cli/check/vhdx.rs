//! Checks a VHDX image: the blocks that its file stores.

use std::path::Path;

use crate::disk::storage::FileStorage;
use crate::walkers::check_vhdx;

use super::super::exit::CommandError;
use super::super::terminal::complain;
use super::summary::CheckSummary;

/// Checks the image at `path`, and prints its findings.
pub(super) fn check(path: &Path, storage: &FileStorage) -> Result<CheckSummary, CommandError> {
    let mut corruptions = 0;
    let checked = check_vhdx(storage, |fault| {
        corruptions += 1;
        complain(&format!("{}: {fault}", path.display()));
    });
    checked.map_err(|error| CommandError::at(path, error))?;
    let filename = path.display().to_string();
    Ok(CheckSummary { corruptions, filename, format: "vhdx", ..CheckSummary::default() })
}
