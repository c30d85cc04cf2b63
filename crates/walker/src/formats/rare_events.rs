//! The one list of rare events: those of all formats, then those that the drawer of each format declares.

use crate::disk::observer::Rare;

use super::RARE_EVENTS;

/// The index of the first event of each list, and the number of all events.
const FIRST_OF_LIST: [usize; RARE_EVENTS.len() + 1] = {
    let mut first = [0; RARE_EVENTS.len() + 1];
    let mut list = 0;
    while list < RARE_EVENTS.len() {
        first[list + 1] = first[list] + RARE_EVENTS[list].len();
        list += 1;
    }
    first
};

/// The number of rare events.
pub const COUNT: usize = FIRST_OF_LIST[RARE_EVENTS.len()];

/// All rare events, in order.
pub const ALL: [Rare; COUNT] = {
    let mut all = [Rare::NoHole; COUNT];
    let mut list = 0;
    while list < RARE_EVENTS.len() {
        let mut place = 0;
        while place < RARE_EVENTS[list].len() {
            all[index(RARE_EVENTS[list][place])] = RARE_EVENTS[list][place];
            place += 1;
        }
        list += 1;
    }
    all
};

/// Returns the index of an event in [`ALL`].
#[inline(always)]
pub const fn index(rare: Rare) -> usize {
    let (list, place) = rare.place();
    FIRST_OF_LIST[list] + place
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_event_has_one_place_and_one_name() {
        assert!(ALL.iter().enumerate().all(|(at, rare)| index(*rare) == at));
        assert_eq!(ALL.iter().map(|rare| rare.name()).collect::<BTreeSet<_>>().len(), COUNT);
    }
}
