//! Makes attacks plainer: it prefers a flipped bit or a small number to a transform of a large number, and one of the
//! first elements to a later one.

use crate::images::damage::Transform;
use crate::programs::Operation;

use super::search::Search;

/// The reducer tries element numbers below this: a minimized image has few elements.
const ELEMENTS: u16 = 64;
/// The bits of the widest element.
const BITS: u16 = 64;

pub(super) fn reduce(search: &mut Search) {
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
