//! Replaces positions that are relative to another anchor by the same positions from the start of the disk.

use std::ops::Range;

use crate::programs::operand::{Anchor, At, Operand, OperandKind};
use crate::programs::{Operation, Vm};

use super::numbers::bytes_of;
use super::search::Search;

pub(super) fn reduce(search: &mut Search) {
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
