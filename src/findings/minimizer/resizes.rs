//! Drops resizes, and gives the disk their size from the start.

use crate::programs::{Operation, Program};

use super::search::Search;

pub(super) fn reduce(search: &mut Search) {
    let mut at = search.best().operations.len();
    while at > 0 {
        at -= 1;
        let Program { mut prologue, mut operations } = search.best().clone();
        if let Some(Operation::Resize { size }) = operations.get(at).copied() {
            prologue.size = size;
            operations.remove(at);
            search.propose(Program { prologue, operations });
        }
    }
}
