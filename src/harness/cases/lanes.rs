//! Requests in flight over time: a lane for each, with a letter for each turn that it has taken.

use serde::Serialize;

use crate::harness::files::turns::TakenTurn;
use crate::programs::WriteRequest;

/// The letters of the operations on files, in the order of `FileOperation::ALL`: write, read, flush, new length.
const LETTERS: [char; 4] = ['w', 'r', 'f', 'l'];
/// The meaning of the characters of a lane, for people.
pub const LEGEND: &str =
    "r reads a file, w writes, f flushes, l changes the length, . works, - waits";
/// A turn without an operation on a file.
const NOTHING: char = '.';
/// A turn of another request.
const WAITS: char = '-';

/// A request that was in flight with others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lane {
    /// The request, in words.
    pub request: String,
    /// A character for each turn of all requests: the letter of its operations on files, `w`, `r`, `f` (flush) or `l`
    /// (length), the first of these; `.` if there was none; `-` while another request has its turn; a blank before the
    /// first turn and behind the last one.
    pub turns: String,
}

/// Returns the lanes of requests that were in flight together.
pub(crate) fn lanes(requests: &[WriteRequest], taken: &[TakenTurn]) -> Vec<Lane> {
    let lane = |(index, request): (usize, &WriteRequest)| {
        let is_own = |turn: &TakenTurn| turn.request == index;
        let first = taken.iter().position(is_own).unwrap_or(taken.len());
        let last = taken.iter().rposition(is_own).unwrap_or_default();
        let letter = |(at, turn): (usize, &TakenTurn)| match is_own(turn) {
            true => {
                let mut kinds = LETTERS.iter().zip(&turn.operations);
                kinds.find(|(_, count)| **count > 0).map_or(NOTHING, |(letter, _)| *letter)
            }
            false if at > first && at < last => WAITS,
            false => ' ',
        };
        let turns = taken.iter().enumerate().map(letter).collect();
        Lane { request: request.to_string(), turns }
    };
    requests.iter().enumerate().map(lane).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_has_a_letter_for_each_turn() {
        let turn = |request, operations| TakenTurn { request, waiting: 1, operations };
        let taken =
            [turn(1, [0, 2, 0, 0]), turn(0, [0; 4]), turn(1, [1, 1, 0, 0]), turn(0, [0, 0, 1, 0])];
        let drawn = lanes(&[WriteRequest::Flush, WriteRequest::Flush], &taken);
        assert_eq!(drawn.iter().map(|lane| &*lane.turns).collect::<Vec<_>>(), [" .-f", "r-w "]);
    }
}
