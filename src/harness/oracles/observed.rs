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
