//! Drops all checkpoints at once, and all questions at once. Some can only go together with others.

use crate::programs::operation::Class;

use super::search::Search;

pub(super) fn reduce(search: &mut Search) {
    search.propose_kept(|_, operation| operation.class() != Class::Checkpoints);
    search.propose_kept(|_, operation| !matches!(operation.class(), Class::Asks(_)));
}
