//! The bitmap directory of an image, entry by entry.

use super::bitmap::{BitmapEntry, BitmapsExtension};
use super::constants::BITMAP_FIXED_BYTES;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;

/// Calls `take` with the index, the host offset and the fixed part of each entry. Checks the lengths as QEMU does at
/// open (`block/qcow2-bitmap.c`, `bitmap_list_load`), and nothing else of an entry.
///
/// # Errors
/// The entries do not fill the directory, a read fails, or `take` returns an error.
pub fn each_entry<S: Storage + ?Sized>(
    storage: &S,
    extension: &BitmapsExtension,
    mut take: impl FnMut(u32, HostOffset, &BitmapEntry) -> Result<(), MapError>,
) -> Result<(), MapError> {
    let BitmapsExtension { bitmaps, directory_bytes: mut left, directory_offset: mut at } =
        *extension;
    for index in 0..bitmaps {
        if left < BITMAP_FIXED_BYTES as u64 {
            let what = "it has fewer entries than the header says, or is cut short";
            return Err(MapError::BitmapDirectory { what });
        }
        let mut fixed = [0; BITMAP_FIXED_BYTES];
        storage.read_at(at, &mut fixed)?;
        let entry = BitmapEntry::parse(&fixed);
        let length_bytes = entry.length_bytes();
        left = left.checked_sub(length_bytes).ok_or(MapError::BitmapDirectory {
            what: "an entry reaches past the directory's end",
        })?;
        take(index, at, &entry)?;
        // The directory ends before 2^63, and this entry before the directory: the sum does not saturate.
        at += length_bytes;
    }
    match left {
        0 => Ok(()),
        _ => Err(MapError::BitmapDirectory { what: "it is longer than the header says" }),
    }
}
