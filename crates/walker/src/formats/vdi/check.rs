//! Checks the block map as QEMU does (`block/vdi.c`, `vdi_co_check`).

use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;

use crate::disk::storage::Storage;
use crate::formats::entries::{EntryRun, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::OPEN_PIECE_BYTES;

use super::header::{VdiHeader, is_stored};

/// The largest number of faults that are reported. An image may have as many as entries in holes of its file.
const MAX_FAULTS: u64 = 1 << 20;

/// A fault of the block map. The texts are those of QEMU.
enum VdiFault {
    Shared { block: u32 },
    TooLarge { index: u64, block: u32 },
    Count { found: u64, stated: u32 },
}

impl fmt::Display for VdiFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared { block } => write!(f, "block index {block} also used by {block}"),
            Self::TooLarge { index, block } => {
                write!(f, "block index {index} too large, is {block}")
            }
            Self::Count { found, stated } => {
                write!(f, "allocated blocks mismatch, is {found}, should be {stated}")
            }
        }
    }
}

/// Checks that each stored block has a place of its own with a number below that of blocks, and counts them.
///
/// # Errors
/// There are too many faults, QEMU refuses the image, or a read failed.
pub(super) fn check<S: Storage + ?Sized>(
    image: &S,
    report: &mut dyn FnMut(&dyn fmt::Display),
) -> Result<(), MapError> {
    let header = VdiHeader::read(image)?;
    let (mut seen, mut faults, mut found) = (BTreeSet::new(), 0u64, 0u64);
    let mut report = |fault: VdiFault| {
        faults = faults.saturating_add(1);
        report(&fault);
        match faults > MAX_FAULTS {
            true => Err(MapError::TooLarge("too many faults in the block map")),
            false => Ok(()),
        }
    };
    let mut scratch = [0; OPEN_PIECE_BYTES];
    let entries = 0..u64::from(header.entries);
    let _ = each_entries(image, header.map, entries, &mut scratch, |piece| -> Flow {
        for EntryRun { indices, entry } in piece.runs() {
            let block = u32::from_le_bytes(entry);
            if !is_stored(block) {
                continue;
            }
            for index in indices {
                if block >= header.entries {
                    report(VdiFault::TooLarge { index, block })?;
                    continue;
                }
                found = found.saturating_add(1);
                if !seen.insert(block) {
                    report(VdiFault::Shared { block })?;
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    match found == u64::from(header.allocated) {
        true => Ok(()),
        false => report(VdiFault::Count { found, stated: header.allocated }),
    }
}
