//! The events of an engine's answers, for feedback. They judge nothing.

use crate::disk::extent::Extent;
use crate::disk::observer::{Event, Observer, Rare, State, Vital};
use crate::harness::engine::EngineError;

/// Reports the extents of a whole walk. Each table of the disk maps `1 << span_bits` bytes.
pub fn extents(whole: &[Extent], span_bits: u32, observer: &dyn Observer) {
    if !observer.observes() {
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
pub fn work(work: &WalkWork, observer: &dyn Observer) {
    let WalkWork { reads, bytes, extents, table_bytes } = *work;
    observer.vital(Vital::Reads, reads);
    observer.vital(Vital::ReadBytes, bytes);
    observer.ratio(Vital::TableReads, bytes, table_bytes);
    observer.ratio(Vital::EntryExtents, extents as u64, table_bytes / BYTES_PER_ENTRY);
}

/// Reports how much of the `fuel` of a walk is used, when `left` is left.
pub fn fuel(fuel: u64, left: u64, observer: &dyn Observer) {
    observer.ratio(Vital::FuelUsed, fuel.abs_diff(left), fuel);
}

/// The bytes of an entry, as in most tables of qcow2 and VHDX.
const BYTES_PER_ENTRY: u64 = 8;

/// Reports that the engine opens a damaged image, or why it does not. Returns the disk, if it does.
pub fn opened<D>(answer: Result<D, EngineError>, observer: &dyn Observer) -> Option<D> {
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
pub fn error(error: &EngineError, observer: &dyn Observer) {
    if observer.observes() {
        observer.reason(&error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[derive(Default)]
    struct Vitals(RefCell<Vec<(Vital, u64)>>);

    impl Observer for Vitals {
        fn vital(&self, vital: Vital, value: u64) {
            self.0.borrow_mut().push((vital, value));
        }
    }

    #[test]
    fn ratios_have_units_and_need_a_denominator() {
        let ratios = |measured: WalkWork, (fuel, left): (u64, u64)| {
            let vitals = Vitals::default();
            work(&measured, &vitals);
            super::fuel(fuel, left, &vitals);
            let all = vitals.0.into_inner();
            all.into_iter().filter(|(vital, _)| vital.parts().is_some()).collect::<Vec<_>>()
        };
        let measured = WalkWork { reads: 3, bytes: 1000, extents: 6, table_bytes: 400 };
        let of =
            [(Vital::TableReads, 2560), (Vital::EntryExtents, 122), (Vital::FuelUsed, 1 << 12)];
        assert_eq!(ratios(measured, (1000, 750)), of);
        assert_eq!(ratios(measured, (1000, 0))[2].1, 1 << 14);
        assert_eq!(ratios(WalkWork { table_bytes: 0, ..measured }, (0, 0)), []);
        // Less than an entry.
        let few = ratios(WalkWork { table_bytes: 7, ..measured }, (1, 1));
        assert_eq!(few, [(Vital::TableReads, 146_285), (Vital::FuelUsed, 0)]);
        let held = ratios(WalkWork { bytes: u64::MAX, table_bytes: 1, ..measured }, (1, 1));
        assert_eq!(held[0], (Vital::TableReads, u64::MAX));
    }
}
