//! The bitmaps of an image, with the checks that QEMU makes when it loads them at open. A walk does not depend on
//! them, so that only a reader that prints them calls this.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use super::bitmap::{BitmapEntry, BitmapTableEntry, bits_for};
use super::bitmap_directory::each_entry;
use super::constants::{BITMAP_FIXED_BYTES, MAX_FILE_BYTES};
use super::head::Head;
use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{PIECE_BYTES, Storage};
use crate::formats::entries::{Entries, each_entries};
use crate::formats::error::{Flow, MapError};

/// The largest number of bits in a bitmap. With more, an assertion ends QEMU (`hbitmap_alloc`).
const MAX_BITS: u64 = 1 << 41;

/// The largest number of entries in all tables that are read. The entries take 1 GiB.
const MAX_READ_ENTRIES: u64 = 1 << 27;

/// A bitmap of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedBitmap {
    /// The name. It ends before its first zero byte.
    pub name: Vec<u8>,
    /// Flag bits.
    pub flags: u32,
    /// log2 of the guest bytes per bit, 9 to 31.
    pub granularity_bits: u8,
}

/// Returns the bitmaps of the image in `storage`, in the order of their directory. Reads the tables of bitmaps that
/// are not in use, and no bits (QEMU `block/qcow2-bitmap.c`, `qcow2_load_dirty_bitmaps`). The directory bounds the
/// length of all names: 64 MiB.
///
/// # Errors
/// QEMU refuses the directory, a bitmap or its table, the tables are too long to be read, or a read fails.
pub fn bitmap_list<S: Storage + ?Sized>(
    storage: &S,
    head: &Head,
) -> Result<Vec<ListedBitmap>, MapError> {
    let Some(extension) = &head.bitmaps else { return Ok(Vec::new()) };
    let geometry = &head.header.geometry;
    let size_bytes = head.header.virtual_size_bytes();
    let (mut bitmaps, mut names) = (Vec::new(), BTreeSet::new());
    let (mut left, mut scratch) = (MAX_READ_ENTRIES, vec![0; PIECE_BYTES]);
    each_entry(storage, extension, |index, at, entry| {
        let fault = |what| MapError::Bitmap { index, what };
        if let Some(what) = entry.fault(geometry, size_bytes) {
            return Err(fault(what));
        }
        if bits_for(size_bytes, entry.granularity_bits) > MAX_BITS {
            return Err(fault("it has more than 2^41 bits"));
        }
        let name = name_of(storage, at, entry)?;
        let is_new = names.insert(name.clone());
        // QEMU looks at a name again only if the bits count.
        if !entry.in_use() {
            if !is_new {
                return Err(fault("another bitmap has the same name"));
            }
            left = left
                .checked_sub(entry.table_entries.into())
                .ok_or(MapError::TooLarge("tables of bitmaps"))?;
            check_table(storage, entry, geometry.cluster_size, &mut scratch, fault)?;
        }
        let BitmapEntry { flags, granularity_bits, .. } = *entry;
        bitmaps.push(ListedBitmap { name, flags, granularity_bits });
        Ok(())
    })?;
    Ok(bitmaps)
}

/// Reads the name of the directory entry at `at`, which has no extra data.
fn name_of<S: Storage + ?Sized>(
    storage: &S,
    at: HostOffset,
    entry: &BitmapEntry,
) -> Result<Vec<u8>, MapError> {
    let mut name = vec![0; usize::from(entry.name_bytes)];
    // The entry ends before 2^63.
    storage.read_at(at + BITMAP_FIXED_BYTES as u64, &mut name)?;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    name.truncate(end);
    Ok(name)
}

/// Checks the entries of a bitmap's table.
fn check_table<S: Storage + ?Sized>(
    storage: &S,
    entry: &BitmapEntry,
    cluster_size: ClusterSize,
    scratch: &mut [u8],
    fault: impl Fn(&'static str) -> MapError,
) -> Result<(), MapError> {
    let entries = u64::from(entry.table_entries);
    if entry.table_offset.get() > MAX_FILE_BYTES - entries * 8 {
        return Err(fault("its table lies past the end of the longest file"));
    }
    let _ = each_entries(storage, entry.table_offset, 0..entries, scratch, |piece| -> Flow {
        // Zeros are entries, too: all bits of their clusters are zeros.
        if let Entries::Read(_, words) = piece {
            for word in words {
                let word = BitmapTableEntry(u64::from_be_bytes(*word));
                word.cluster(cluster_size).map_err(&fault)?;
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(())
}
