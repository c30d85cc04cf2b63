//! Checks the blocks that the file stores, as QEMU does at open (`block/vhdx.c`, `vhdx_check_bat_entries`).

use std::ops::ControlFlow;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::entries::{EntryRun, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::whole_sectors;
use crate::formats::vhdx::block_table::{BlockState, BlockTable};
use crate::formats::vhdx::regions::{Region, Regions};

/// Calls `take` with each fault of stored blocks, also of those in the place of a sector bitmap: a block must lie in
/// the file and beside all regions. `scratch` holds a piece of the table.
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
