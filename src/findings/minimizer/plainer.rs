//! Reducers that replace an operation by a plainer one.

use crate::images::damage::Transform;
use crate::programs::operand::{Anchor, At, Operand, OperandKind};
use crate::programs::{Operation, Vm};
use std::ops::Range;

use super::numbers::bytes_of;
use super::search::Search;

/// Replaces operations by the plainer operations that the table of operations names.
pub(super) fn kinds(search: &mut Search) {
    for at in 0..search.best().operations.len() {
        while let Some(operation) = search.best().operations.get(at).copied() {
            let mut plainer = operation.plainer().into_iter();
            if !plainer.any(|plainer| search.propose_at(at, plainer)) {
                break;
            }
        }
    }
}

/// The reducer tries element numbers below this: a minimized image has few elements.
const ELEMENTS: u16 = 64;
/// The bits of the widest element.
const BITS: u16 = 64;

/// Makes attacks plainer: it prefers a flipped bit or a small number to a transform of a large number, and one of the
/// first elements to a later one.
pub(super) fn patches(search: &mut Search) {
    for at in 0..search.best().operations.len() {
        let Some(Operation::Patch { part, depth, nth, transform, value }) =
            search.best().operations.get(at).copied()
        else {
            continue;
        };
        let patch = |nth, transform, value| Operation::Patch { part, depth, nth, transform, value };
        let flips = (0..BITS).map(|bit| patch(nth, Transform::Flip, bit));
        let sets = [0, 1].map(|value| patch(nth, Transform::Set, value));
        if transform != Transform::Flip {
            let _ = flips.chain(sets).any(|plainer| search.propose_at(at, plainer));
        }
        if nth >= ELEMENTS {
            let first = |nth| patch(nth, transform, value);
            let _ = (0..ELEMENTS).map(first).any(|plainer| search.propose_at(at, plainer));
        }
    }
}

/// Replaces positions that are relative to another anchor by the same positions from the start of the disk.
pub(super) fn positions(search: &mut Search) {
    // Starts at the end: a change of an operation can change the meaning of later operations, but not of earlier ones.
    let mut at = search.best().operations.len();
    while at > 0 {
        at -= 1;
        let Some(operation) = search.best().operations.get(at).copied() else { continue };
        if is_plain(&operation) {
            continue;
        }
        let Some(vm) = search.run(search.best(), at) else { return };
        if let Some(plainer) = from_the_start(operation, &vm) {
            search.propose_at(at, plainer);
        }
    }
}

/// Returns the place of an operation's position in its record, if it has one.
fn place_of(operation: &Operation) -> Option<Range<usize>> {
    let place = operation.places().iter().find(|place| place.kind == OperandKind::Position)?;
    Some(place.bytes())
}

/// Reports whether an operation has no position, or one that is counted from the start.
fn is_plain(operation: &Operation) -> bool {
    let record = operation.encode();
    let position = place_of(operation).and_then(|bytes| record.get(bytes));
    position.is_none_or(|mut position| At::decode(&mut position).anchor == Anchor::Start)
}

/// Returns the same operation with its position counted from the start.
fn from_the_start(operation: Operation, vm: &Vm) -> Option<Operation> {
    let mut record = operation.encode();
    let operand = record.get_mut(place_of(&operation)?)?;
    let at = At::decode(&mut &*operand);
    let steps = u16::try_from(vm.position(at)).ok()?;
    operand.copy_from_slice(&bytes_of(At { anchor: Anchor::Start, steps }));
    Operation::decode(&record)
}
