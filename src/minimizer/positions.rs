//! Counts positions from the start of the disk, where the cluster that is meant lies near enough.

use crate::vm::operand::{Anchor, At, Operand};
use crate::vm::{Operation, Vm};

use super::measure::bytes_of;
use super::search::Search;

pub(super) fn reduce(search: &mut Search) {
    let mut vm = Vm::new();
    vm.begin(&search.best().prologue, search.limits());
    for at in 0..search.best().operations.len() {
        let Some(operation) = search.best().operations.get(at).copied() else { break };
        if let Some(plainer) = from_the_start(operation, &vm) {
            search.propose_at(at, plainer);
        }
        // The same cluster either way.
        vm.step(operation);
    }
}

/// The same operation, its position counted from the start.
fn from_the_start(operation: Operation, vm: &Vm) -> Option<Operation> {
    let place = operation.places().find(|place| place.name == "at")?;
    let mut record = operation.encode();
    let operand = record.get_mut(place.bytes)?;
    let at = At::decode(&mut &*operand);
    let steps = u16::try_from(vm.position(at)).ok()?;
    operand.copy_from_slice(&bytes_of(At { anchor: Anchor::Start, steps }));
    Operation::decode(&record)
}
