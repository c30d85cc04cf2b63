//! The index and the name of each counter. Once released, they are an interface: they decide which inputs a corpus
//! keeps, so [`schema_hash`] changes only in a release that says so. The hash does not cover the counters of second
//! answers, which lie behind all others: only campaigns against another implementation count them.

use std::fmt;

use crate::disk::observer::{Event, Rare, SecondAnswer, State, Vital};
use crate::formats::rare_events;

use super::states::{edge, edge_at, place_of};

pub use super::states::{EDGES, events_of};

/// The number of magnitudes of a vital: 0, 1, 2 to 3, 4 to 7, … and 2^14 and more.
pub const MAGNITUDES: usize = 16;

const RARE_AT: usize = EDGES;
// Room for future rare events, so that later counters keep their index.
const VITALS_AT: usize = RARE_AT + 64;
const DELTAS_AT: usize = VITALS_AT + Vital::COUNT * MAGNITUDES;

const REASONS_AT: usize = DELTAS_AT + 2 * Vital::COUNT * MAGNITUDES;

/// The number of counters for the reasons of refusals. Reasons may share a counter: an engine may have any number of
/// them.
pub const REASONS: usize = 256;

/// The number of counters before those of second answers: the counters of a run without a second opinion.
pub const OWN_COUNTERS: usize = (REASONS_AT + REASONS).next_multiple_of(64);
const SECOND_AT: usize = OWN_COUNTERS;

/// The number of counters. It is a multiple of 64, because the recorder scans pieces of 64 counters. It is at most 16
/// KiB, which libFuzzer clears and scans in a microsecond.
pub const COUNTERS: usize = (SECOND_AT + SecondAnswer::COUNT).next_multiple_of(64);

const _: () = assert!(COUNTERS <= 16 << 10);
const _: () = assert!(RARE_AT + rare_events::COUNT <= VITALS_AT);

/// The thing that a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counter {
    /// A pair of events in a state, one right after the other.
    Edge {
        /// The state.
        state: State,
        /// The first event.
        previous: Event,
        /// The second event.
        event: Event,
    },
    /// A rare event.
    Rare(Rare),
    /// An image has a vital of a magnitude.
    Vital {
        /// The vital.
        vital: Vital,
        /// Its magnitude, less than [`MAGNITUDES`].
        magnitude: u8,
    },
    /// A vital changes by a magnitude from one image of a program to the next.
    Delta {
        /// The vital.
        vital: Vital,
        /// The vital becomes smaller.
        falls: bool,
        /// The magnitude of the difference, less than [`MAGNITUDES`].
        magnitude: u8,
    },
    /// A reason for which the engine refuses a damaged image: a checksum of its text.
    Reason(u8),
    /// An answer of another implementation.
    Second(SecondAnswer),
}

impl Counter {
    /// Returns the index of the counter; `None` for an edge of events that cannot happen in its state.
    pub fn index(self) -> Option<usize> {
        Some(match self {
            Self::Edge { state, previous, event } => {
                edge(state, place_of(state, previous)?, place_of(state, event)?)
            }
            Self::Rare(rare) => rare_index(rare),
            Self::Vital { vital, magnitude } => vital_index(vital, magnitude),
            Self::Delta { vital, falls, magnitude } => delta_index(vital, falls, magnitude),
            Self::Reason(checksum) => REASONS_AT + usize::from(checksum),
            Self::Second(answer) => second_index(answer),
        })
    }

    /// Returns the counter at `index`, or `None` if there is none.
    pub fn at(index: usize) -> Option<Self> {
        let bucket = |inside: usize| {
            let vital = *Vital::ALL.get(inside / MAGNITUDES)?;
            Some((vital, (inside % MAGNITUDES) as u8))
        };
        if index >= SECOND_AT {
            SecondAnswer::ALL.get(index - SECOND_AT).copied().map(Self::Second)
        } else if index >= REASONS_AT {
            u8::try_from(index - REASONS_AT).ok().map(Self::Reason)
        } else if index >= DELTAS_AT {
            let (inside, rises) = (index - DELTAS_AT, Vital::COUNT * MAGNITUDES);
            let (vital, magnitude) = bucket(inside % rises)?;
            Some(Self::Delta { vital, falls: inside >= rises, magnitude })
        } else if index >= VITALS_AT {
            let (vital, magnitude) = bucket(index - VITALS_AT)?;
            Some(Self::Vital { vital, magnitude })
        } else if index >= RARE_AT {
            rare_events::ALL.get(index - RARE_AT).copied().map(Self::Rare)
        } else {
            let (state, previous, event) = edge_at(index)?;
            Some(Self::Edge { state, previous, event })
        }
    }
}

/// Returns the number of edges and of rare events among `counters`.
pub fn tally(counters: impl Iterator<Item = Counter>) -> (usize, usize) {
    counters.fold((0, 0), |(edges, rare), counter| match counter {
        Counter::Edge { .. } => (edges + 1, rare),
        Counter::Rare(_) => (edges, rare + 1),
        Counter::Vital { .. } | Counter::Delta { .. } | Counter::Reason(_) | Counter::Second(_) => {
            (edges, rare)
        }
    })
}

/// Returns the index of a rare event's counter.
#[inline(always)]
pub(super) const fn rare_index(rare: Rare) -> usize {
    RARE_AT + rare_events::index(rare)
}

/// Returns the index of the counter of a vital's magnitude.
#[inline(always)]
pub const fn vital_index(vital: Vital, magnitude: u8) -> usize {
    VITALS_AT + vital.index() * MAGNITUDES + magnitude as usize
}

/// Returns the index of the counter for a vital that rises, or falls, by this magnitude.
#[inline(always)]
pub(super) const fn delta_index(vital: Vital, falls: bool, magnitude: u8) -> usize {
    let rows = vital.index() + falls as usize * Vital::COUNT;
    DELTAS_AT + rows * MAGNITUDES + magnitude as usize
}

/// Returns the counter of a reason. Words with digits are values, which differ from image to image, and do not count:
/// except for letters with one digit behind them, such as `L2`.
pub fn reason(text: &str) -> Counter {
    let is_value = |word: &&str| {
        let begins_with_letter = word.starts_with(|first: char| first.is_ascii_alphabetic());
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        digits > usize::from(begins_with_letter)
    };
    let mut checksum = crc32fast::Hasher::new();
    for word in text.split_ascii_whitespace().filter(|word| !is_value(word)) {
        checksum.update(word.as_bytes());
        checksum.update(b" ");
    }
    let [lowest, ..] = checksum.finalize().to_le_bytes();
    Counter::Reason(lowest)
}

/// Returns the index of the counter of a second answer.
#[inline(always)]
pub(super) const fn second_index(answer: SecondAnswer) -> usize {
    SECOND_AT + answer.index()
}

/// Returns the magnitude of a value: 0 for 0, otherwise 1 plus the binary logarithm, up to the largest magnitude.
#[inline]
pub fn magnitude(value: u64) -> u8 {
    let bits = u64::BITS - value.leading_zeros();
    bits.min(MAGNITUDES as u32 - 1) as u8
}

/// Returns the values of a magnitude as text.
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
            Self::Delta { vital, falls, magnitude } => {
                let way = if falls { "fall" } else { "rise" };
                write!(f, "{way}: {}, {}", vital.name(), values(magnitude))
            }
            Self::Reason(checksum) => write!(f, "reason: {checksum:#04x}"),
            Self::Second(answer) => write!(f, "second: {}", answer.name()),
        }
    }
}

/// Returns a checksum of all names and their order, without the second answers. Two corpora are comparable if their
/// checksums are equal.
pub fn schema_hash() -> u32 {
    let mut hash = crc32fast::Hasher::new();
    for (index, counter) in (0..OWN_COUNTERS).filter_map(|at| Some((at, Counter::at(at)?))) {
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
                assert_eq!(counter.index(), Some(index));
                assert!(names.insert(counter.to_string()), "{counter}");
            }
        }
        assert_eq!(
            names.len(),
            EDGES
                + rare_events::COUNT
                + 3 * Vital::COUNT * MAGNITUDES
                + REASONS
                + SecondAnswer::COUNT
        );
        assert_eq!(Counter::at(COUNTERS), None);
        let (state, previous, event) = (State::Emit, Event::Start, Event::Piece);
        assert_eq!(Counter::Edge { state, previous, event }.index(), None);
    }

    #[test]
    fn a_reason_has_the_same_counter_with_other_values() {
        let one = reason("L2 entry for guest offset 0x1f00: (4096) bits contradict");
        assert_eq!(one, reason("L2 entry for guest offset 0xde: (7) bits contradict"));
        assert_ne!(one, reason("L1 entry for guest offset 0x1f00: (4096) bits contradict"));
        // As imago writes it.
        let version = reason("qcow2 v3765571072 is not supported");
        assert_eq!(version, reason("qcow2 v258048 is not supported"));
        assert_ne!(version, reason("qcow2 v1 is not supported"));
    }

    #[test]
    fn magnitudes_are_logarithms() {
        let of = [0, 1, 2, 3, 4, 16_383, 16_384, u64::MAX].map(magnitude);
        assert_eq!(of, [0, 1, 2, 2, 3, 14, 15, 15]);
        let last = Counter::Vital { vital: Vital::Extents, magnitude: 15 };
        assert_eq!(last.to_string(), "vital: extents, 16384 and up");
    }
}
