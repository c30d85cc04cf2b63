//! The events of each state. An edge has a counter only if both of its events can happen in its state: all pairs of
//! events in all states would not fit into the counters that libFuzzer clears in a microsecond.

use crate::disk::observer::Event::{self, *};
use crate::disk::observer::State;

/// Returns the events that can happen in a state. The first one is [`Event::Start`].
pub const fn events_of(state: State) -> &'static [Event] {
    match state {
        State::Build => BUILD,
        State::AllocateBlocks => ALLOCATE_BLOCKS,
        State::AllocateTable => ALLOCATE_TABLE,
        State::Serialise => SERIALISE,
        State::Open => OPEN,
        State::WalkL1 => WALK_L1,
        State::WalkL2 => WALK_L2,
        State::WalkBlocks => WALK_BLOCKS,
        State::WalkBlockStates => WALK_BLOCK_STATES,
        State::WalkDirectory => WALK_DIRECTORY,
        State::WalkGrains => WALK_GRAINS,
        State::Emit => EMIT,
        State::Check => CHECK,
        State::Write => WRITE,
        State::FileReads | State::FileWrites => FILE_ACCESSES,
    }
}

const BUILD: &[Event] = &[
    Start,
    Unallocated,
    ZeroPlain,
    ZeroAllocated,
    Normal,
    Compressed,
    Subclusters,
    Table,
    SharedTable,
    Snapshot,
    SnapshotDeleted,
    SnapshotApplied,
    Bitmap,
    PastEnd,
    Overlay,
    Resized,
    Arranged,
    NoEffect,
    Appended,
    Filled,
    NoHole,
    InPlace,
    Walk,
    Lookup,
    Read,
    Checkpoint,
    Attacked,
];
const ALLOCATE_BLOCKS: &[Event] = &[Start, Block, Appended, Filled, NoHole, Counted, CountsItself];
const ALLOCATE_TABLE: &[Event] =
    &[Start, Table, Block, Appended, Filled, NoHole, Extended, Moved, Trimmed];
const SERIALISE: &[Event] = &[
    Start,
    Table,
    SharedTable,
    Snapshot,
    Header,
    SecondHeader,
    Footer,
    Log,
    Directory,
    Metadata,
    Block,
    Extent,
];
const OPEN: &[Event] = &[
    Start,
    Header,
    SecondHeader,
    Footer,
    Log,
    Directory,
    Metadata,
    Extent,
    Table,
    Snapshot,
    Bitmap,
    Backing,
    DataFile,
    Failed,
];
const WALK_L1: &[Event] =
    &[Start, Unallocated, ZeroAllocated, Normal, Piece, Table, NothingThere, Stopped, Failed];
const WALK_L2: &[Event] = &[
    Start,
    Unallocated,
    ZeroPlain,
    ZeroAllocated,
    Normal,
    Compressed,
    Subclusters,
    UnallocatedSubclusters,
    Piece,
    Backing,
    PastEnd,
    Failed,
];
const WALK_BLOCKS: &[Event] =
    &[Start, ZeroPlain, Normal, Piece, PastEnd, NothingThere, Stopped, Failed];
const WALK_BLOCK_STATES: &[Event] = &[
    Start,
    ZeroPlain,
    Normal,
    Piece,
    Bitmap,
    Undefined,
    Unmapped,
    PastEnd,
    NothingThere,
    Stopped,
    Failed,
];
const WALK_DIRECTORY: &[Event] =
    &[Start, Unallocated, Normal, Extent, Piece, Table, SharedTable, NothingThere, Stopped, Failed];
const WALK_GRAINS: &[Event] =
    &[Start, Unallocated, ZeroPlain, Normal, Compressed, Piece, Backing, PastEnd, PastFile, Failed];
const EMIT: &[Event] =
    &[Start, Unallocated, ZeroPlain, ZeroAllocated, Normal, Compressed, UnallocatedSubclusters];
const CHECK: &[Event] = &[Start, Snapshot, Walk, Lookup, Read, Stopped, Failed];
const WRITE: &[Event] = &[
    Start,
    Unallocated,
    ZeroPlain,
    Normal,
    Snapshot,
    SnapshotDeleted,
    SnapshotApplied,
    Bitmap,
    Resized,
    Checkpoint,
    Flushed,
    Cut,
];
const FILE_ACCESSES: &[Event] = &[
    Start,
    Header,
    Metadata,
    Directory,
    Table,
    SharedTable,
    Block,
    Snapshot,
    Bitmap,
    Compressed,
    Normal,
    Subclusters,
    ZeroAllocated,
    Unallocated,
    Piece,
    Backing,
    DataFile,
    Extent,
    PastFile,
];

/// The place of an event that cannot happen in a state.
const NOT_LISTED: u8 = u8::MAX;

/// The place of each event in the list of each state.
const PLACES: [[u8; Event::COUNT]; State::COUNT] = {
    let mut places = [[NOT_LISTED; Event::COUNT]; State::COUNT];
    let mut state = 0;
    while state < State::COUNT {
        let events = events_of(State::ALL[state]);
        let mut at = 0;
        while at < events.len() {
            assert!(places[state][events[at].index()] == NOT_LISTED, "an event is listed twice");
            places[state][events[at].index()] = at as u8;
            at += 1;
        }
        assert!(places[state][Event::Start.index()] == 0, "a chain begins with the first event");
        state += 1;
    }
    places
};

/// The index of each state's first edge, and the number of edges of all states.
const FIRST: [usize; State::COUNT + 1] = {
    let mut first = [0; State::COUNT + 1];
    let mut state = 0;
    while state < State::COUNT {
        first[state + 1] = first[state] + LISTED[state] * LISTED[state];
        state += 1;
    }
    first
};

/// The number of events that can happen in each state.
const LISTED: [usize; State::COUNT] = {
    let (mut width, mut state) = ([0; State::COUNT], 0);
    while state < State::COUNT {
        width[state] = events_of(State::ALL[state]).len();
        state += 1;
    }
    width
};

/// The number of edges: in each state, the pairs of events that can happen in it.
pub const EDGES: usize = FIRST[State::COUNT];

/// Returns the place of an event in the list of a state; `None` if the event cannot happen in it.
#[inline(always)]
pub(super) const fn place_of(state: State, event: Event) -> Option<u8> {
    match PLACES[state.index()][event.index()] {
        NOT_LISTED => None,
        place => Some(place),
    }
}

/// Returns the index of an edge between the events at two places in the list of a state.
#[inline(always)]
pub(super) const fn edge(state: State, previous: u8, event: u8) -> usize {
    FIRST[state.index()] + previous as usize * LISTED[state.index()] + event as usize
}

/// Returns the state and the two events of the edge at `index`; `None` if there is no such edge.
pub(super) fn edge_at(index: usize) -> Option<(State, Event, Event)> {
    let state = FIRST.partition_point(|first| *first <= index).checked_sub(1)?;
    let state = *State::ALL.get(state)?;
    let (events, inside) = (events_of(state), index - FIRST[state.index()]);
    Some((state, events[inside / events.len()], events[inside % events.len()]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::extent::Mapping;
    use crate::programs::Operation;
    use crate::programs::operation::OPERATION_BYTES;

    #[test]
    fn every_event_can_happen() {
        let can = |event: Event| State::ALL.iter().any(|state| place_of(*state, event).is_some());
        assert!(Event::ALL.iter().all(|event| can(*event)));
    }

    #[test]
    fn the_lists_have_the_events_of_all_operations_and_of_all_mappings() {
        for (code, name) in Operation::OPCODES {
            let record = Operation::with_opcode(*code, [0; OPERATION_BYTES]);
            let operation = Operation::decode(&record).unwrap();
            let event = operation.class().event();
            assert!(place_of(State::Build, event).is_some(), "{name}: {}", event.name());
        }
        for bits in 0..16 {
            let has = |bit: u32| bits & 1 << bit != 0;
            let offset = has(3).then_some(crate::disk::offsets::HostOffset::ZERO);
            let (present, data, compressed) = (has(0), has(1), has(2));
            let event = Mapping { present, data, compressed, offset, ..Mapping::HOLE }.event();
            for state in [State::WalkL2, State::Emit] {
                assert!(place_of(state, event).is_some(), "{}: {}", state.name(), event.name());
            }
        }
    }
}
