//! The structures of an image whose format is not qcow2, for an observer.

use crate::disk::observer::{Event, Observer, State};

/// Reports structures in the order of the file. Each has a host offset, if the image has it.
pub fn report_structures<const N: usize>(
    mut structures: [(Option<u64>, Event); N],
    observer: &dyn Observer,
) {
    observer.begin(State::Serialise);
    structures.sort_by_key(|(offset, _)| *offset);
    for (_, event) in structures.iter().filter(|(offset, _)| offset.is_some()) {
        observer.event(State::Serialise, *event);
    }
}
