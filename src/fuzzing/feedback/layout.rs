//! Which counter is where, and what it is called. An interface once released: corpora are kept by these
//! counters, so that [`schema_hash`] changes only where a release says so.

use std::fmt;

use crate::disk::observer::{Event, Rare, State, Vital};

/// How many edges there are: pairs of events in each state.
pub const EDGES: usize = State::COUNT * Event::COUNT * Event::COUNT;
/// How many magnitudes a vital has: 0, 1, 2 to 3, 4 to 7, … and 2^14 and up.
pub const MAGNITUDES: usize = 16;

const RARE_AT: usize = EDGES;
// Room for rare events to come, so that what lies behind them stays where it is.
const VITALS_AT: usize = RARE_AT + 64;
const DELTAS_AT: usize = VITALS_AT + Vital::COUNT * MAGNITUDES;

/// How many counters there are: a multiple of 64, in which they are scanned, and at most the 16 KiB that
/// libFuzzer clears and scans in a microsecond.
pub const COUNTERS: usize = (DELTAS_AT + Vital::COUNT * MAGNITUDES).next_multiple_of(64);

const _: () = assert!(COUNTERS <= 16 << 10);
const _: () = assert!(RARE_AT + Rare::COUNT <= VITALS_AT);

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counter {
    /// In a state, an event right after another.
    Edge {
        /// The state.
        state: State,
        /// The event before.
        previous: Event,
        /// The event.
        event: Event,
    },
    /// A rare event.
    Rare(Rare),
    /// An image had a vital of a magnitude.
    Vital {
        /// Which.
        vital: Vital,
        /// Its magnitude, less than [`MAGNITUDES`].
        magnitude: u8,
    },
    /// From one image of a program to the next, a vital changed by a magnitude.
    Delta {
        /// Which.
        vital: Vital,
        /// The magnitude of the difference, less than [`MAGNITUDES`].
        magnitude: u8,
    },
}

impl Counter {
    /// Where the counter is.
    #[inline(always)]
    pub const fn index(self) -> usize {
        match self {
            Self::Edge { state, previous, event } => edge(state, previous.index(), event),
            Self::Rare(rare) => RARE_AT + rare.index(),
            Self::Vital { vital, magnitude } => VITALS_AT + bucket(vital, magnitude),
            Self::Delta { vital, magnitude } => DELTAS_AT + bucket(vital, magnitude),
        }
    }

    /// What the counter at `index` counts; `None` where there is none.
    pub fn at(index: usize) -> Option<Self> {
        let bucket = |at: usize| {
            let vital = *Vital::ALL.get((index - at) / MAGNITUDES)?;
            Some((vital, ((index - at) % MAGNITUDES) as u8))
        };
        if index >= DELTAS_AT {
            let (vital, magnitude) = bucket(DELTAS_AT)?;
            Some(Self::Delta { vital, magnitude })
        } else if index >= VITALS_AT {
            let (vital, magnitude) = bucket(VITALS_AT)?;
            Some(Self::Vital { vital, magnitude })
        } else if index >= RARE_AT {
            Rare::ALL.get(index - RARE_AT).copied().map(Self::Rare)
        } else {
            let event = *Event::ALL.get(index % Event::COUNT)?;
            let previous = *Event::ALL.get(index / Event::COUNT % Event::COUNT)?;
            let state = *State::ALL.get(index / Event::COUNT / Event::COUNT)?;
            Some(Self::Edge { state, previous, event })
        }
    }
}

/// How many of `counters` are edges, and how many rare events.
pub fn tally(counters: impl Iterator<Item = Counter>) -> (usize, usize) {
    counters.fold((0, 0), |(edges, rare), counter| match counter {
        Counter::Edge { .. } => (edges + 1, rare),
        Counter::Rare(_) => (edges, rare + 1),
        Counter::Vital { .. } | Counter::Delta { .. } => (edges, rare),
    })
}

/// The counter of an edge; `previous` is an event's index.
#[inline(always)]
pub(super) const fn edge(state: State, previous: usize, event: Event) -> usize {
    (state.index() * Event::COUNT + previous) * Event::COUNT + event.index()
}

const fn bucket(vital: Vital, magnitude: u8) -> usize {
    vital.index() * MAGNITUDES + magnitude as usize
}

/// The magnitude of a value: 0 for 0, else 1 more than the logarithm, as far as there are magnitudes.
#[inline]
pub fn magnitude(value: u64) -> u8 {
    let bits = u64::BITS - value.leading_zeros();
    bits.min(MAGNITUDES as u32 - 1) as u8
}

/// The values of a magnitude, in words.
pub fn values(magnitude: u8) -> String {
    match magnitude {
        0 | 1 => format!("{magnitude}"),
        _ if usize::from(magnitude) == MAGNITUDES - 1 => {
            format!("{} and up", 1u64 << (magnitude - 1))
        }
        _ => format!("{} to {}", 1u64 << (magnitude - 1), (1u64 << magnitude) - 1),
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Edge { state, previous, event } => {
                write!(f, "{}: {} → {}", state.name(), previous.name(), event.name())
            }
            Self::Rare(rare) => write!(f, "rare: {}", rare.name()),
            Self::Vital { vital, magnitude } => {
                write!(f, "vital: {}, {}", vital.name(), values(magnitude))
            }
            Self::Delta { vital, magnitude } => {
                write!(f, "change: {}, {}", vital.name(), values(magnitude))
            }
        }
    }
}

/// A checksum of all names in their places: two corpora can be compared where it is the same.
pub fn schema_hash() -> u32 {
    let mut hash = crc32fast::Hasher::new();
    for (index, counter) in (0..COUNTERS).filter_map(|at| Some((at, Counter::at(at)?))) {
        hash.update(format!("{index} {counter}\n").as_bytes());
    }
    hash.finalize()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_counter_has_one_place_and_one_name() {
        let mut names = BTreeSet::new();
        for index in 0..COUNTERS {
            if let Some(counter) = Counter::at(index) {
                assert_eq!(counter.index(), index);
                assert!(names.insert(counter.to_string()), "{counter}");
            }
        }
        assert_eq!(names.len(), EDGES + Rare::COUNT + 2 * Vital::COUNT * MAGNITUDES);
        assert_eq!(Counter::at(COUNTERS), None);
    }

    #[test]
    fn magnitudes_are_logarithms() {
        let of = [0, 1, 2, 3, 4, 16_383, 16_384, u64::MAX].map(magnitude);
        assert_eq!(of, [0, 1, 2, 2, 3, 14, 15, 15]);
        let last = Counter::Vital { vital: Vital::Extents, magnitude: 15 };
        assert_eq!(last.to_string(), "vital: extents, 16384 and up");
    }
}
