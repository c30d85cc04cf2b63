//! The events of an engine's answers, for feedback. They judge nothing.

use crate::disk::extent::Extent;
use crate::disk::observer::{Event, Observer, Rare, State, Vital};
use crate::harness::engine::EngineError;

/// Reports the extents of a whole walk. Each table of the disk maps `1 << span_bits` bytes.
pub fn extents<O: Observer>(whole: &[Extent], span_bits: u32, observer: &O) {
    if !O::OBSERVES {
        return;
    }
    observer.begin(State::Emit);
    observer.vital(Vital::Extents, whole.len() as u64);
    for extent in whole {
        let Extent { start, length_bytes, mapping } = extent;
        observer.event(State::Emit, mapping.event());
        observer.vital(Vital::Depth, u64::from(mapping.depth));
        // `partition` has checked that no extent is empty, and that none ends past 2^64.
        let last = start.get().saturating_add(length_bytes.saturating_sub(1));
        if mapping.present && start.get() >> span_bits != last >> span_bits {
            observer.rare(Rare::ExtentAcrossTables);
        }
    }
}

/// The work of an engine while it opened an image and walked the disk.
#[derive(Clone, Copy, Debug)]
pub struct WalkWork {
    /// The number of reads.
    pub reads: u64,
    /// The number of bytes that they returned.
    pub bytes: u64,
    /// The number of extents.
    pub extents: usize,
    /// The number of bytes that tables may have.
    pub table_bytes: u64,
}

/// Reports the work of an engine.
pub fn work<O: Observer>(work: &WalkWork, observer: &O) {
    let WalkWork { reads, bytes, extents, table_bytes } = *work;
    observer.vital(Vital::Reads, reads);
    observer.vital(Vital::ReadBytes, bytes);
    observer.ratio(Vital::TableReads, bytes, table_bytes);
    observer.ratio(Vital::EntryExtents, extents as u64, table_bytes / ENTRY_BYTES);
}

/// Reports how much of the `fuel` of a walk is used, when `left` is left.
pub fn fuel<O: Observer>(fuel: u64, left: u64, observer: &O) {
    observer.ratio(Vital::FuelUsed, fuel.abs_diff(left), fuel);
}

/// The bytes of an entry, as in most tables of qcow2 and VHDX.
const ENTRY_BYTES: u64 = 8;

/// Reports that the engine opens a damaged image, or why it does not. Returns the disk, if it does.
pub fn opened<D, O: Observer>(answer: Result<D, EngineError>, observer: &O) -> Option<D> {
    observer.begin(State::Check);
    match answer {
        Ok(disk) => Some(disk),
        Err(refused) => {
            observer.event(State::Check, Event::Failed);
            error(&refused, observer);
            None
        }
    }
}

/// Reports an error of the engine about a damaged image.
pub fn error<O: Observer>(error: &EngineError, observer: &O) {
    if O::OBSERVES {
        observer.reason(&error.to_string());
    }
}
