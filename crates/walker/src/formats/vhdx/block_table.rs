//! The block allocation table (BAT): the state of each block, and where it lies.
//!
//! # Arithmetic
//! Numbers of blocks and entries wrap around at 2^32 where QEMU computes them with 32 bits.

use std::ops::ControlFlow;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::entries::{EntryRun, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::whole_sectors;
use crate::formats::vhdx::constants::{
    BAT_ENTRY_BYTES, CHUNK_BYTES, GUEST_SECTOR_BYTES, MAX_LENGTH_BYTES, MAX_REQUEST_BYTES,
    OFFSET_UNIT_BYTES,
};
use crate::formats::vhdx::metadata::Metadata;
use crate::formats::vhdx::region_table::{Region, Regions};

/// The place of the table, and the number of bytes that its entries stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTable {
    /// The host offset of the table.
    pub offset: HostOffset,
    /// The number of entries for which the table's region has room.
    pub room_entries: u64,
    /// The number of entries that QEMU checks at open.
    pub checked_entries: u32,
    /// The number of guest bytes in a block: a power of two.
    pub block_bytes: u32,
    /// The size of the disk in bytes, a multiple of 512.
    pub size_bytes: u64,
}

impl BlockTable {
    /// Returns the table of a disk in the region of `length_bytes` at `offset`, after the checks that QEMU makes
    /// (`block/vhdx.c`, `vhdx_open`).
    ///
    /// # Errors
    /// The region has no room for all entries, QEMU cannot read the region, or the disk is too large.
    pub fn new(
        offset: HostOffset,
        length_bytes: u32,
        metadata: &Metadata,
    ) -> Result<Self, MapError> {
        let Metadata { block_bytes, stored_size_bytes } = *metadata;
        let checked_entries = checked_entries(block_bytes, stored_size_bytes);
        let room_entries = u64::from(length_bytes) / BAT_ENTRY_BYTES as u64;
        let fault = |field, found, expected| Err(MapError::Header { field, found, expected });
        if u64::from(checked_entries) > room_entries {
            let expected = "room for an entry of each block";
            return fault("length of the block allocation table", length_bytes.into(), expected);
        }
        let end = offset.checked_add(length_bytes.into()).map_or(u64::MAX, HostOffset::get);
        if length_bytes > MAX_REQUEST_BYTES || end > MAX_LENGTH_BYTES {
            let expected = "a table that QEMU can read at once";
            return fault("end of the block allocation table", end, expected);
        }
        let sector = u64::from(GUEST_SECTOR_BYTES);
        let size_bytes = stored_size_bytes / sector * sector;
        if size_bytes > MAX_LENGTH_BYTES {
            return fault("virtual disk size", stored_size_bytes, "at most 2^63 - 2^30 bytes");
        }
        Ok(Self { offset, room_entries, checked_entries, block_bytes, size_bytes })
    }

    /// Returns the number of blocks between two entries for sector bitmaps: a power of two.
    pub fn chunk_blocks(&self) -> u64 {
        CHUNK_BYTES / u64::from(self.block_bytes)
    }

    /// Returns the index of the entry of a block.
    pub fn index_of(&self, block: u64) -> u64 {
        block.saturating_add(block / self.chunk_blocks())
    }

    /// Returns the number of blocks whose entries lie before the entry at `index`.
    pub fn blocks_before(&self, index: u64) -> u64 {
        index.saturating_sub(index / self.chunk_blocks().saturating_add(1))
    }

    /// Reports whether the entry at `index` stands for a sector bitmap instead of a block.
    pub fn is_bitmap(&self, index: u64) -> bool {
        let chunk = self.chunk_blocks();
        index % chunk.saturating_add(1) == chunk
    }

    /// Returns the number of bytes that QEMU requires a stored block to have in the file. QEMU uses the index of the
    /// entry as the number of the block (`block/vhdx.c`, `vhdx_check_bat_entries`).
    pub fn required_bytes(&self, index: u64) -> u64 {
        let block = u64::from(self.block_bytes);
        self.size_bytes.wrapping_sub(index.wrapping_mul(block)).min(block)
    }
}

/// The bits of an entry that hold the state.
pub const STATE_MASK: u64 = 7;
/// The state of a block whose content is undefined. It reads as zeros in QEMU.
pub const STATE_UNDEFINED: u64 = 1;
/// The state of a block that the guest has unmapped. It reads as zeros in QEMU.
pub const STATE_UNMAPPED: u64 = 3;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// The block reads as zeros: it was never written, it was discarded, or it holds only zeros.
    Zeros,
    /// The file stores the block at this offset, a multiple of 1 MiB.
    Stored(HostOffset),
    /// Readers fail, for this reason.
    Unreadable(&'static str),
}

impl BlockState {
    /// Returns the state that an entry of the table states (QEMU `block/vhdx.c`, `vhdx_co_readv`).
    pub fn of_entry(entry: u64) -> Self {
        match entry & STATE_MASK {
            6 => Self::Stored(HostOffset::new(entry / OFFSET_UNIT_BYTES * OFFSET_UNIT_BYTES)),
            7 => Self::Unreadable("a part of the block lies in a parent, and there is none"),
            4 => Self::Unreadable("the state is 4, which has no meaning"),
            _ => Self::Zeros,
        }
    }
}

/// Returns the number of entries by QEMU's rule (`block/vhdx.c`, `vhdx_calc_bat_entries`). A disk without blocks has
/// as many as one with 2^32 blocks.
fn checked_entries(block_bytes: u32, stored_size_bytes: u64) -> u32 {
    let block = u64::from(block_bytes);
    let blocks = stored_size_bytes.wrapping_add(block.saturating_sub(1)) / block;
    let [a, b, c, d, ..] = blocks.to_le_bytes();
    let blocks = u32::from_le_bytes([a, b, c, d]);
    let chunk_bits = (CHUNK_BYTES / block).trailing_zeros();
    blocks.wrapping_add(blocks.wrapping_sub(1) >> chunk_bits)
}

/// Calls `take` with each fault of stored blocks, as QEMU does at open (`block/vhdx.c`, `vhdx_check_bat_entries`), also
/// of those in the place of a sector bitmap: a block must lie in the file and beside all regions. `scratch` holds a
/// piece of the table.
///
/// # Errors
/// A read failed, or `take` returned an error.
pub(super) fn each_fault<S: Storage + ?Sized>(
    image: &S,
    table: &BlockTable,
    regions: &Regions,
    scratch: &mut [u8],
    mut take: impl FnMut(MapError) -> Result<(), MapError>,
) -> Result<(), MapError> {
    let length = whole_sectors(image.length_bytes());
    let entries = 0..u64::from(table.checked_entries);
    let mut stored = 0u64;
    let mut check = |index: u64, start: HostOffset| -> Result<(), MapError> {
        let mut fault = |what| take(MapError::BlockEntry { index, what });
        if start.get() > i64::MAX as u64 - u64::from(table.block_bytes) {
            fault("the block reaches past 2^63")?;
        }
        let end = start.checked_add(table.required_bytes(index));
        // An empty rest of a block must begin inside the file, too.
        if start.get() >= length || end.is_none_or(|end| end.get() > length) {
            fault("the block reaches past the end of the file")?;
        }
        // QEMU takes the number of stored blocks so far for the index, and skips what it takes for a bitmap.
        let block = Region::new(start, table.block_bytes);
        if !table.is_bitmap(stored) && regions.overlap(&block) {
            fault("the block overlaps a region or the log")?;
        }
        stored = stored.saturating_add(1);
        Ok(())
    };
    let _ = each_entries(image, table.offset, entries, scratch, |piece| -> Flow {
        for EntryRun { mut indices, entry } in piece.runs() {
            if let BlockState::Stored(start) = BlockState::of_entry(u64::from_le_bytes(entry)) {
                indices.try_for_each(|index| check(index, start))?;
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn table(block_bytes: u32, stored_size_bytes: u64, length_bytes: u32) -> Option<BlockTable> {
        let metadata = Metadata { block_bytes, stored_size_bytes };
        BlockTable::new(HostOffset::new(3 * MIB), length_bytes, &metadata).ok()
    }

    #[test]
    fn bitmaps_lie_between_chunks() {
        let table = table(256 << 20, 40 << 28, 1 << 20).unwrap();
        assert_eq!((table.chunk_blocks(), table.checked_entries), (16, 42));
        let indices = [0, 15, 16, 31, 32, 39].map(|block| table.index_of(block));
        assert_eq!(indices, [0, 15, 17, 32, 34, 41]);
        assert_eq!(
            [15, 16, 17, 33].map(|index| table.is_bitmap(index)),
            [false, true, false, true]
        );
        assert_eq!([16, 17, 18, 34].map(|index| table.blocks_before(index)), [16, 16, 17, 32]);
    }

    #[test]
    fn the_region_has_room_for_all_entries() {
        let mib = 1 << 20;
        assert!(table(mib, 8 * MIB, 64).is_some() && table(mib, 8 * MIB + 1, 64).is_none());
        // A disk without blocks.
        assert!(table(mib, 0, 8 << 20).is_some() && table(mib, 0, 1 << 20).is_none());
        // Numbers of blocks past 2^32, and the largest disk.
        assert_eq!(table(mib, (1 << 52) + MIB, 8).unwrap().checked_entries, 1);
        let most = MAX_LENGTH_BYTES;
        assert!(
            table(mib, most + 511, 64 << 20).is_some()
                && table(mib, most + 512, 64 << 20).is_none()
        );
    }

    #[test]
    fn states_have_offsets_in_whole_mebibytes() {
        let stored = |offset| BlockState::Stored(HostOffset::new(offset));
        assert_eq!(BlockState::of_entry((5 * MIB) | 0xffff8 | 6), stored(5 * MIB));
        assert_eq!(BlockState::of_entry(u64::MAX - 1), stored(u64::MAX - (MIB - 1)));
        for zeros in [0, 1, 2, 3, 5] {
            assert_eq!(BlockState::of_entry((5 * MIB) | zeros), BlockState::Zeros);
        }
        for state in [4, 7] {
            assert!(matches!(BlockState::of_entry(state), BlockState::Unreadable(_)));
        }
    }

    #[test]
    fn the_last_block_may_be_cut() {
        let table = table(1 << 20, 3 * MIB + 700, 64).unwrap();
        assert_eq!([2, 3, 4].map(|index| table.required_bytes(index)), [MIB, 512, MIB]);
        // Behind the first bitmap, the index is not the number of the block: QEMU requires all of the last block.
        let chunks = self::table(256 << 20, 17 * (256 * MIB) - MIB, 1 << 20).unwrap();
        assert_eq!(chunks.required_bytes(17), 256 * MIB);
    }
}
