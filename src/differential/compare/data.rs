//! Compares the raw files that both sides wrote.

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{FileStorage, Storage, Stored};

use super::replies::RawFiles;
use crate::differential::divergence::{Divergence, DivergenceKind};

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
pub(in crate::differential) fn read_part(
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
