//! The possibilities of a run of a writer: the file operations that could have failed, the cuts, and the other orders
//! of requests in flight. The search through all programs goes on from there.

use smallvec::SmallVec;

use crate::harness::files::chain::Chain;
use crate::harness::files::turns::TakenTurn;
use crate::harness::files::write_log::CutChoices;
use crate::programs::WriteRequest;
use crate::programs::operand::{FileOperation, TurnOrder};

use super::lanes::{Lane, lanes};

/// The possibilities of the last session of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Explored {
    /// The runs that follow note their file operations and turns.
    pub(crate) is_on: bool,
    /// They note their cuts, too. This takes some milliseconds for each run.
    pub(crate) notes_cuts: bool,
    /// The number of operations on files of each kind, in the order of [`FileOperation::ALL`].
    pub(crate) operations: [u32; FileOperation::ALL.len()],
    /// The turns of the last requests in flight.
    pub(crate) turns: SmallVec<[TakenTurn; TurnOrder::CHOICES]>,
    /// The runs that follow note their lanes.
    pub(crate) notes_lanes: bool,
    /// The lanes of each group of requests in flight.
    pub(crate) lanes: Vec<Vec<Lane>>,
    /// The cuts behind the last request.
    pub(crate) cuts: CutChoices,
    /// The cuts while the engine closed the image.
    pub(crate) closing: CutChoices,
}

impl Explored {
    /// Forgets the last run.
    pub(crate) fn begin_run(&mut self) {
        let Self { is_on, notes_cuts, notes_lanes, .. } = *self;
        *self = Self { is_on, notes_cuts, notes_lanes, ..Self::default() };
    }

    /// Notes the possibilities of the requests of a session, before the engine closes the image.
    pub(crate) fn note(&mut self, chain: &Chain) {
        if self.is_on {
            self.note_operations(chain);
            self.turns = chain.turns().taken();
        }
        if self.notes_cuts {
            self.cuts = chain.cut_choices(None);
        }
    }

    /// Notes the lanes of requests that were in flight.
    pub(crate) fn note_flight(&mut self, chain: &Chain, requests: &[WriteRequest]) {
        if self.notes_lanes {
            self.lanes.push(lanes(requests, &chain.turns().taken()));
        }
    }

    /// Notes the cuts while the engine closed the image, after the first `written` changes.
    pub(crate) fn note_closing(&mut self, chain: &Chain, written: usize) {
        if self.is_on {
            self.note_operations(chain);
        }
        if self.notes_cuts {
            self.closing = chain.cut_choices(Some(written));
        }
    }

    fn note_operations(&mut self, chain: &Chain) {
        self.operations = chain.faults(|faults| faults.operations()).unwrap_or(self.operations);
    }
}
