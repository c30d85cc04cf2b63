//! Compares the bytes that QEMU read with those that a guest must read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::differential::divergence::{Divergence, DivergenceKind};
use crate::differential::perform::{IterationError, file_error};
use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{FileStorage, Storage};

use super::data::{GuestContent, GuestData};

/// The bytes that are compared at once.
const GUEST_PIECE_BYTES: usize = 256 << 10;

/// Compares the raw file `read` with the bytes that a guest must read. `folder` contains the files of guest data.
///
/// Both sides agree about these bytes: a difference means that QEMU lost data, or that both read wrong bytes. The
/// outer error is that of a file that cannot be read.
pub(in crate::differential) fn compare(
    data: &GuestData,
    read: &Path,
    folder: &Path,
) -> Result<Result<(), Divergence>, IterationError> {
    let failed = |error: std::io::Error| file_error(read, error);
    let file = FileStorage::open(read).map_err(|error| failed(std::io::Error::other(error)))?;
    let expected = Expected { data, files: files_of(data, folder)? };
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

/// Reads the files of guest data that a disk has.
fn files_of(data: &GuestData, folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, IterationError> {
    let names = data.pieces.iter().filter_map(|(_, content)| match content {
        GuestContent::File { name, .. } => Some(name),
        GuestContent::Byte(_) | GuestContent::Unknown => None,
    });
    let mut files = BTreeMap::new();
    for name in names {
        if !files.contains_key(name) {
            let path = folder.join(name);
            let bytes = fs::read(&path).map_err(|error| file_error(&path, error))?;
            files.insert(name.clone(), bytes);
        }
    }
    Ok(files)
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
        let [found, wanted] = buffers.each_mut().map(|buffer| &mut buffer[..length]);
        file.read_at(HostOffset::new(at), found)?;
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

/// The expected bytes, with the files of guest data.
struct Expected<'d> {
    data: &'d GuestData,
    files: BTreeMap<String, Vec<u8>>,
}

impl Expected<'_> {
    /// Returns the content at an offset, and the offset at which another content begins. Zeros have none.
    fn at(&self, at: u64) -> (u64, Option<GuestContent>) {
        let (content, next) = self.data.pieces.at(at);
        (next, content.cloned())
    }

    /// Writes the expected bytes from an offset on. The content is known.
    fn fill(&self, content: Option<&GuestContent>, at: u64, wanted: &mut [u8]) {
        let file = match content {
            None | Some(GuestContent::Unknown) => return wanted.fill(0),
            Some(GuestContent::Byte(byte)) => return wanted.fill(*byte),
            Some(GuestContent::File { name, origin }) => self.files.get(name).zip(Some(origin)),
        };
        let Some((bytes, origin)) = file else { return };
        let start = at.saturating_sub(*origin).checked_rem(bytes.len() as u64).unwrap_or(0);
        let cycle = bytes.iter().cycle().skip(start as usize);
        wanted.iter_mut().zip(cycle).for_each(|(wanted, byte)| *wanted = *byte);
    }
}
