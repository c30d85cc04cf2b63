//! Replaces operations by the plainer operations that the table of operations names.

use super::search::Search;

pub(super) fn reduce(search: &mut Search) {
    for at in 0..search.best().operations.len() {
        while let Some(operation) = search.best().operations.get(at).copied() {
            let mut plainer = operation.plainer().into_iter();
            if !plainer.any(|plainer| search.propose_at(at, plainer)) {
                break;
            }
        }
    }
}
