//! Compares the bytes that QEMU read with those that a guest must read.

use std::path::Path;

use crate::differential::compare::read_part;
use crate::differential::divergence::{Divergence, DivergenceKind};
use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{FileStorage, Storage};
use crate::recipes::RecipeError;

use crate::recipes::guest::{Expected, GUEST_PIECE_BYTES, GuestContent, GuestData};

/// Compares the raw file `read` with the bytes that a guest must read. `folder` contains the files of guest data.
///
/// Both sides agree about these bytes: a difference means that QEMU lost data, or that both read wrong bytes. The
/// outer error is that of a file that cannot be read.
pub(in crate::differential) fn compare(
    data: &GuestData,
    read: &Path,
    folder: &Path,
) -> Result<Result<(), Divergence>, RecipeError> {
    let failed = |error: std::io::Error| RecipeError::file(read, error);
    let file = FileStorage::open(read).map_err(|error| failed(std::io::Error::other(error)))?;
    let expected = Expected::new(data, folder)?;
    let found =
        difference(&file, &expected).map_err(|error| failed(std::io::Error::other(error)))?;
    let Some((at, wanted, found)) = found else { return Ok(Ok(())) };
    let zero = |byte: u8| if byte == 0 { "zero" } else { "data" };
    let what = match (wanted, found) {
        (0, _) | (_, 0) => format!("{} → {}", zero(wanted), zero(found)),
        _ => "data → other data".to_string(),
    };
    let detail = format!("guest offset {at}: expected {wanted:#04x}, both sides read {found:#04x}");
    Ok(Err(Divergence::new(DivergenceKind::ModelDivergence, what, detail)))
}

/// Returns the first byte that differs: its offset, the expected one, and the one that was read.
fn difference(
    file: &FileStorage,
    expected: &Expected<'_>,
) -> Result<Option<(u64, u8, u8)>, StorageError> {
    let end = file.length_bytes().min(expected.data.size);
    let mut buffers = [vec![0; GUEST_PIECE_BYTES], vec![0; GUEST_PIECE_BYTES]];
    let mut at = 0;
    while at < end {
        let part = file.stored(HostOffset::new(at), HostOffset::new(end))?;
        let (next, content) = expected.at(at);
        let next = next.min(part.end.get());
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
        let [found, wanted] = buffers.each_mut().map(|buffer| &mut buffer[..length]);
        read_part(file, part, HostOffset::new(at), found)?;
        expected.fill(content.as_ref(), at, wanted);
        if found != wanted {
            let pairs = (at..).zip(wanted.iter().zip(found.iter()));
            let mut bytes = pairs.map(|(at, (wanted, found))| (at, *wanted, *found));
            return Ok(bytes.find(|(_, wanted, found)| wanted != found));
        }
        at = at.saturating_add(length as u64);
    }
    Ok(None)
}
