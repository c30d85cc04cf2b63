//! Drops ranges of operations: halves first, then quarters, and so on.

use super::search::Search;

pub(super) fn reduce(search: &mut Search) {
    let mut length = search.best().operations.len();
    while length > 0 {
        drop_ranges(search, length);
        length /= 2;
    }
}

/// Drops ranges of `length` operations, the last range first: fewer operations depend on the last ones.
pub(super) fn drop_ranges(search: &mut Search, length: usize) {
    let mut end = search.best().operations.len();
    while end > 0 {
        let range = end.saturating_sub(length)..end;
        search.propose_kept(|at, _| !range.contains(&at));
        end = range.start;
    }
}
