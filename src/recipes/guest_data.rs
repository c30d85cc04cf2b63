//! The bytes that a guest must read, in pieces.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::recipes::RecipeError;

use super::data::{GuestContent, GuestData};

/// The bytes that are compared at once.
pub(crate) const GUEST_PIECE_BYTES: usize = 64 << 10;

/// The expected bytes, with the files of guest data.
pub(crate) struct Expected<'d> {
    pub(crate) data: &'d GuestData,
    files: BTreeMap<String, Vec<u8>>,
}

impl<'d> Expected<'d> {
    /// Reads the files of guest data that a disk has from `folder`.
    pub(crate) fn new(data: &'d GuestData, folder: &Path) -> Result<Self, RecipeError> {
        Ok(Self { data, files: files_of(data, folder)? })
    }

    /// Returns the content at an offset, and the offset at which another content begins. Zeros have none.
    pub(crate) fn at(&self, at: u64) -> (u64, Option<GuestContent>) {
        let (content, next) = self.data.pieces.at(at);
        (next, content.cloned())
    }

    /// Writes the expected bytes from an offset on. The content is known.
    pub(crate) fn fill(&self, content: Option<&GuestContent>, at: u64, wanted: &mut [u8]) {
        let file = match content {
            None | Some(GuestContent::Unknown) => return wanted.fill(0),
            Some(GuestContent::Byte(byte)) => return wanted.fill(*byte),
            Some(GuestContent::File { name, origin }) => self.files.get(name).zip(Some(origin)),
        };
        let Some((bytes, origin)) = file else { return };
        let mut start = at.saturating_sub(*origin).checked_rem(bytes.len() as u64).unwrap_or(0);
        let mut left = wanted;
        while !left.is_empty() {
            let Some(rest) = bytes.get(start as usize..).filter(|rest| !rest.is_empty()) else {
                return;
            };
            let (piece, next) = left.split_at_mut(rest.len().min(left.len()));
            piece.copy_from_slice(&rest[..piece.len()]);
            (left, start) = (next, 0);
        }
    }
}

/// Reads the files of guest data that a disk has.
fn files_of(data: &GuestData, folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, RecipeError> {
    let names = data.pieces.iter().filter_map(|(_, content)| match content {
        GuestContent::File { name, .. } => Some(name),
        GuestContent::Byte(_) | GuestContent::Unknown => None,
    });
    let mut files = BTreeMap::new();
    for name in names {
        if !files.contains_key(name) {
            let path = folder.join(name);
            let bytes = fs::read(&path).map_err(|error| RecipeError::file(&path, error))?;
            files.insert(name.clone(), bytes);
        }
    }
    Ok(files)
}
