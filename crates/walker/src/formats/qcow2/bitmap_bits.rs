//! The bits of a bitmap, as bytes: bit 0 of byte 0 stands for the first granule of the disk.
//!
//! # Arithmetic
//! A bitmap has less than 2^61 bytes, and its table and clusters end before 2^63. An offset that saturates lies
//! past all files.

use super::bitmap::{BitmapCluster, BitmapEntry, BitmapTableEntry};
use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Storage, read_array};
use crate::formats::error::MapError;

/// Fills `into` with the bits of the bitmap `entry` from byte `from` on. Bits behind its table are zeros. `index` is
/// that of the bitmap in its directory, for errors.
///
/// # Errors
/// An entry of the table is malformed, or a read fails.
pub fn read_bits<S: Storage + ?Sized>(
    storage: &S,
    (index, entry): (u32, &BitmapEntry),
    cluster_size: ClusterSize,
    from: u64,
    into: &mut [u8],
) -> Result<(), MapError> {
    let (mut from, mut rest) = (from, into);
    while !rest.is_empty() {
        let inside = from & cluster_size.mask();
        let left = usize::try_from(cluster_size.bytes() - inside).unwrap_or(usize::MAX);
        let (piece, behind) = rest.split_at_mut(left.min(rest.len()));
        match cluster_of(storage, (index, entry), cluster_size, from)? {
            BitmapCluster::AllZeroes => piece.fill(0),
            BitmapCluster::AllOnes => piece.fill(0xff),
            BitmapCluster::Data(host) => storage.read_at(host + inside, piece)?,
        }
        from = from.saturating_add(piece.len() as u64);
        rest = behind;
    }
    Ok(())
}

/// Returns the cluster of bits that has the byte `from`.
fn cluster_of<S: Storage + ?Sized>(
    storage: &S,
    (index, entry): (u32, &BitmapEntry),
    cluster_size: ClusterSize,
    from: u64,
) -> Result<BitmapCluster, MapError> {
    let nth = from >> cluster_size.bits();
    if nth >= u64::from(entry.table_entries) {
        return Ok(BitmapCluster::AllZeroes);
    }
    let at: HostOffset = entry.table_offset + nth * 8;
    let word = BitmapTableEntry(u64::from_be_bytes(read_array(storage, at)?));
    word.cluster(cluster_size).map_err(|what| MapError::Bitmap { index, what })
}
