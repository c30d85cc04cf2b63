//! Drops all checkpoints at once, and all questions: each may be all that keeps another one.

use crate::programs::Operation;

use super::search::Search;

pub(super) fn reduce(search: &mut Search) {
    search.propose_kept(|_, operation| !matches!(operation, Operation::Checkpoint {}));
    search.propose_kept(|_, operation| {
        let asks = matches!(
            operation,
            Operation::Walk { .. } | Operation::Lookup { .. } | Operation::Read { .. }
        );
        !asks
    });
}
