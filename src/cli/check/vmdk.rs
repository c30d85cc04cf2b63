//! Checks a VMDK image: the grains that its tables name.

use std::path::Path;

use crate::disk::storage::{FileStorage, Layer};
use crate::walkers::check_vmdk;

use super::super::exit::CommandError;
use super::summary::CheckSummary;

/// Checks the image at `path`. As in `qemu-img check`, the first fault ends the check, which then has no result.
pub(super) fn check(
    path: &Path,
    layer: &Layer<'_, FileStorage>,
) -> Result<CheckSummary, CommandError> {
    check_vmdk(layer).map_err(|error| CommandError::at(path, error))?;
    let filename = path.display().to_string();
    Ok(CheckSummary { filename, format: "vmdk", ..CheckSummary::default() })
}
