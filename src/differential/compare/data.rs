//! Compares bytes: the raw files that both sides wrote, and an answer on which both sides agree with the bytes that a
//! guest must read, by the commands of the recipe.

use std::ops::Range;
use std::path::Path;

use super::replies::RawFiles;
use crate::differential::divergence::{Divergence, DivergenceKind};
use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{FileStorage, Storage, Stored};
use crate::recipes::RecipeError;
use crate::recipes::guest_data::{Expected, GUEST_PIECE_BYTES, GuestContent, GuestData};

/// The bytes that are read at once.
const DATA_PIECE_BYTES: usize = 64 << 10;

/// Compares two files. Holes are zeros.
pub(super) fn compare(files: RawFiles<'_>) -> Result<(), Divergence> {
    let opened = |side: &str, path| {
        FileStorage::open(path).map_err(|error| {
            Divergence::new(DivergenceKind::DataDivergence, format!("{side}, no file"), error)
        })
    };
    let (qemu, tested) = (opened("qemu", files.qemu)?, opened("tested", files.tested)?);
    let (one, other) = (qemu.length_bytes(), tested.length_bytes());
    if one != other {
        let detail = format!("qemu wrote {one} bytes, tested {other}");
        return Err(Divergence::new(DivergenceKind::DataDivergence, "length", detail));
    }
    let at = difference(&qemu, &tested).map_err(|error| {
        Divergence::new(DivergenceKind::DataDivergence, "a file cannot be read", error)
    })?;
    let Some(at) = at else { return Ok(()) };
    let [one, other] = [&qemu, &tested].map(|file| sixteen(file, at));
    let zero = |bytes: &[u8]| if bytes.iter().all(|byte| *byte == 0) { "zeros" } else { "data" };
    let what = format!("{} → {}", zero(&one), zero(&other));
    let detail = format!("guest offset {at}: qemu {one:02x?}, tested {other:02x?}");
    Err(Divergence::new(DivergenceKind::DataDivergence, what, detail))
}

/// Returns the offset of the first byte that differs.
fn difference(one: &FileStorage, other: &FileStorage) -> Result<Option<u64>, StorageError> {
    let end = HostOffset::new(one.length_bytes());
    let mut at = HostOffset::new(0);
    let mut pieces = [vec![0; DATA_PIECE_BYTES], vec![0; DATA_PIECE_BYTES]];
    while at < end {
        let parts = [one.stored(at, end)?, other.stored(at, end)?];
        let part_end = parts[0].end.min(parts[1].end);
        if !parts[0].stored && !parts[1].stored {
            at = part_end;
            continue;
        }
        let length = part_end.get().saturating_sub(at.get()).min(DATA_PIECE_BYTES as u64) as usize;
        let [first, second] = pieces.each_mut().map(|piece| &mut piece[..length]);
        read_part(one, parts[0], at, first)?;
        read_part(other, parts[1], at, second)?;
        if first != second {
            let same = first.iter().zip(second).take_while(|(one, other)| one == other).count();
            return Ok(Some(at.get().saturating_add(same as u64)));
        }
        at += length as u64;
    }
    Ok(None)
}

/// Reads a part of a file, all of which is stored or lies in a hole.
fn read_part(
    file: &FileStorage,
    part: Stored,
    at: HostOffset,
    into: &mut [u8],
) -> Result<(), StorageError> {
    if part.stored {
        return file.read_at(at, into);
    }
    // The system would fill its cache with the zeros of a hole.
    into.fill(0);
    Ok(())
}

fn sixteen(file: &FileStorage, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    // The bytes are shown to people only. Past the end, reads give zeros.
    let _ = file.read_at(HostOffset::new(at), &mut bytes);
    bytes
}

/// Compares the raw file `read` with the bytes that a guest must read. `folder` contains the files of guest data.
///
/// Both sides agree about these bytes: a difference means that QEMU lost data, or that both read wrong bytes. The outer
/// error means that a file cannot be read.
pub(in crate::differential) fn compare_known(
    data: &GuestData,
    read: &Path,
    folder: &Path,
) -> Result<Result<(), Divergence>, RecipeError> {
    let failed = |error: std::io::Error| RecipeError::file(read, error);
    let file = FileStorage::open(read).map_err(|error| failed(std::io::Error::other(error)))?;
    let expected = Expected::new(data, folder)?;
    let found =
        unexpected_byte(&file, &expected).map_err(|error| failed(std::io::Error::other(error)))?;
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
fn unexpected_byte(
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

/// Compares the guest ranges that a map calls zeros with the bytes that a guest must read. `folder` contains the files
/// of guest data.
///
/// Both sides printed this map: a difference means that both would have a guest read zeros in place of data.
pub(in crate::differential) fn compare_zeros(
    data: &GuestData,
    zeros: impl Iterator<Item = Range<u64>>,
    folder: &Path,
) -> Result<Result<(), Divergence>, RecipeError> {
    let written: Vec<Range<u64>> = zeros.flat_map(|range| written_in(data, range)).collect();
    if written.is_empty() {
        return Ok(Ok(()));
    }
    let expected = Expected::new(data, folder)?;
    let found = written.into_iter().find_map(|range| first_other_byte(&expected, range));
    Ok(found.map_or(Ok(()), |(at, byte)| {
        let detail = format!("guest offset {at}: expected {byte:#04x}, both maps have zeros");
        Err(Divergence::new(DivergenceKind::ModelDivergence, "data → zeros in the map", detail))
    }))
}

/// Returns the parts of a range that have known bytes, other than the zeros of a disk without writes.
fn written_in(data: &GuestData, range: Range<u64>) -> Vec<Range<u64>> {
    let known = data.pieces.iter().filter(|(_, content)| **content != GuestContent::Unknown);
    let within = |piece: Range<u64>| piece.start.max(range.start)..piece.end.min(range.end);
    known.map(|(piece, _)| within(piece)).filter(|part| part.start < part.end).collect()
}

/// Returns the first byte of a range that is not zero, and its offset.
fn first_other_byte(expected: &Expected<'_>, range: Range<u64>) -> Option<(u64, u8)> {
    let mut buffer = vec![0; GUEST_PIECE_BYTES];
    let mut at = range.start;
    while at < range.end {
        let (next, content) = expected.at(at);
        let length = next.min(range.end).saturating_sub(at).min(GUEST_PIECE_BYTES as u64) as usize;
        let bytes = &mut buffer[..length];
        expected.fill(content.as_ref(), at, bytes);
        if let Some((at, byte)) = (at..).zip(bytes.iter()).find(|(_, byte)| **byte != 0) {
            return Some((at, *byte));
        }
        at = at.saturating_add(length as u64);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::guest::GuestModel;
    use crate::recipes::guest::tests::{img, io};

    #[test]
    fn a_lost_write_is_a_divergence() {
        let dir = tempfile::tempdir().unwrap();
        let read = dir.path().join("read.raw");
        std::fs::write(dir.path().join("noise"), [1, 2, 3]).unwrap();
        let mut model = GuestModel::default();
        img(&mut model, "create -q -f raw a.raw 4096");
        io(&mut model, "write -q -s noise 512 7", "a.raw", 0);
        io(&mut model, "discard -q 1024 512", "a.raw", 0);
        let mut bytes = vec![0; 4096];
        bytes[512..519].copy_from_slice(&[1, 2, 3, 1, 2, 3, 1]);
        bytes[1100] = 5;
        for (at, expected) in [
            (None, None),
            (Some(515), Some("data → other data")),
            (Some(600), Some("zero → data")),
            (Some(2000), Some("zero → data")),
        ] {
            let mut bytes = bytes.clone();
            if let Some(at) = at {
                bytes[at] ^= 0x80;
            }
            std::fs::write(&read, &bytes).unwrap();
            let found =
                compare_known(model.disk("a.raw").unwrap(), &read, dir.path()).unwrap().err();
            assert_eq!(found.map(|it| it.what).as_deref(), expected, "{at:?}");
        }
    }

    #[test]
    fn data_that_a_map_calls_zeros_are_a_divergence() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("noise"), [0, 0, 3]).unwrap();
        let mut model = GuestModel::default();
        img(&mut model, "create -q -f raw a.raw 4096");
        io(&mut model, "write -q -s noise 512 512", "a.raw", 0);
        io(&mut model, "write -q -P 7 1024 512", "a.raw", 0);
        io(&mut model, "discard -q 1280 512", "a.raw", 0);
        for (zeros, expected) in [
            // The file begins with zeros.
            (0..514, None),
            (0..515, Some(514)),
            (1000..1024, Some(1000)),
            (1024..1025, Some(1024)),
            (1280..4096, None),
        ] {
            let data = model.disk("a.raw").unwrap();
            let zeros_only = std::iter::once(zeros.clone());
            let found = compare_zeros(data, zeros_only, dir.path()).unwrap().err();
            let expected = expected.map(|at| format!("guest offset {at}: "));
            let detail = found.map(|it| it.detail);
            let (start, wanted) =
                (detail.as_deref().unwrap_or(""), expected.as_deref().unwrap_or(""));
            assert!(
                start.starts_with(wanted) && start.is_empty() == wanted.is_empty(),
                "{zeros:?}: {start}"
            );
        }
    }
}
