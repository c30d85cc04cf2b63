//! Drops single operations, and pairs that must go together, such as a snapshot and the operation that applies it.

use super::ranges::drop_ranges;
use super::search::Search;

/// The maximum length of a program of which all pairs are tried.
const MAX_PAIRED: usize = 24;

pub(super) fn reduce(search: &mut Search) {
    drop_ranges(search, 1);
    if search.best().operations.len() <= MAX_PAIRED {
        drop_pairs(search);
    }
}

fn drop_pairs(search: &mut Search) {
    let mut second = search.best().operations.len();
    while second > 1 {
        second -= 1;
        let dropped = |search: &mut Search, first: usize| {
            search.propose_kept(|at, _| at != first && at != second)
        };
        if (0..second).rev().any(|first| dropped(search, first)) {
            second = second.min(search.best().operations.len());
        }
    }
}
