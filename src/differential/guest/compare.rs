//! Compares the bytes that QEMU read with those that a guest must read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::differential::divergence::{Divergence, DivergenceKind};
use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{FileStorage, Storage};

use super::data::{GuestContent, GuestData};

/// The bytes that are compared at once.
const GUEST_PIECE_BYTES: usize = 256 << 10;

/// Compares the raw file `read` with the bytes that a guest must read. `folder` contains the files of guest data.
///
/// Both sides agree about these bytes: a difference means that QEMU lost data, or that both read wrong bytes.
pub(in crate::differential) fn compare(
    data: &GuestData,
    read: &Path,
    folder: &Path,
) -> Result<(), Divergence> {
    let failed = |error: &dyn std::fmt::Display| {
        Divergence::new(DivergenceKind::ModelDivergence, "the raw file cannot be read", error)
    };
    let file = FileStorage::open(read).map_err(|error| failed(&error))?;
    let mut expected = Expected { data, folder, files: BTreeMap::new() };
    let found = difference(&file, &mut expected).map_err(|error| failed(&error))?;
    let Some((at, wanted, found)) = found else { return Ok(()) };
    let zero = |byte: u8| if byte == 0 { "zero" } else { "data" };
    let what = match (wanted, found) {
        (0, _) | (_, 0) => format!("{} → {}", zero(wanted), zero(found)),
        _ => "data → other data".to_string(),
    };
    let detail = format!("guest offset {at}: expected {wanted:#04x}, both sides read {found:#04x}");
    Err(Divergence::new(DivergenceKind::ModelDivergence, what, detail))
}

/// Returns the first byte that differs: its offset, the expected one, and the one that was read.
fn difference(
    file: &FileStorage,
    expected: &mut Expected<'_>,
) -> Result<Option<(u64, u8, u8)>, StorageError> {
    let end = file.length_bytes().min(expected.data.size);
    let mut bytes = vec![0; GUEST_PIECE_BYTES];
    let mut at = 0;
    while at < end {
        let part = file.stored(HostOffset::new(at), HostOffset::new(end))?;
        let part_end = if part.stored { end } else { part.end.get() };
        let (next, content) = expected.at(at);
        let next = next.min(part_end);
        let is_skipped = match content {
            Some(GuestContent::Unknown) => true,
            None => !part.stored,
            Some(_) => false,
        };
        if is_skipped {
            at = next;
            continue;
        }
        let length = next.saturating_sub(at).min(GUEST_PIECE_BYTES as u64) as usize;
        let Some(piece) = bytes.get_mut(..length) else { break };
        file.read_at(HostOffset::new(at), piece)?;
        for (offset, found) in (at..next).zip(piece.iter()) {
            match expected.byte(content.as_ref(), offset) {
                Some(wanted) if wanted != *found => return Ok(Some((offset, wanted, *found))),
                _ => {}
            }
        }
        at = at.saturating_add(length as u64);
    }
    Ok(None)
}

/// The expected bytes, with the files of guest data that were read so far.
struct Expected<'d> {
    data: &'d GuestData,
    folder: &'d Path,
    files: BTreeMap<String, Vec<u8>>,
}

impl Expected<'_> {
    /// Returns the content at an offset, and the offset at which another content begins. Zeros have none.
    fn at(&self, at: u64) -> (u64, Option<GuestContent>) {
        let before = self.data.pieces.range(..=at).next_back();
        match before.filter(|(_, piece)| piece.end > at) {
            Some((_, piece)) => (piece.end, Some(piece.content.clone())),
            None => {
                let next = self.data.pieces.range(at..).next();
                (next.map_or(u64::MAX, |(start, _)| *start), None)
            }
        }
    }

    /// Returns the expected byte at an offset, if it is known.
    fn byte(&mut self, content: Option<&GuestContent>, at: u64) -> Option<u8> {
        match content {
            None => Some(0),
            Some(GuestContent::Byte(byte)) => Some(*byte),
            Some(GuestContent::Unknown) => None,
            Some(GuestContent::File { name, origin }) => {
                if !self.files.contains_key(name) {
                    let bytes = fs::read(self.folder.join(name)).unwrap_or_default();
                    self.files.insert(name.clone(), bytes);
                }
                let bytes = self.files.get(name)?;
                let inside = at.checked_sub(*origin)?.checked_rem(bytes.len() as u64)?;
                bytes.get(usize::try_from(inside).ok()?).copied()
            }
        }
    }
}
