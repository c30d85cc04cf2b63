//! Makes a file that shows a bug as short and as empty as it can be. Reducers cut the end, remove and zero ranges, and
//! make bytes smaller, from large ranges to single bytes.

use std::ops::{ControlFlow, Range};

use super::search::{MinimizeProgress, Minimized, Trials, settle};

/// The number of times that the length of a range is halved before ranges are no longer removed: there would be many.
const REMOVED_HALVINGS: u32 = 8;

/// The measure that every step makes smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FileMeasure {
    /// The number of bytes that are not 0: a person reads these.
    nonzero: usize,
    length: usize,
    /// The sum of all bytes.
    sum: u64,
}

impl FileMeasure {
    fn of(file: &[u8]) -> Self {
        let nonzero = file.iter().filter(|byte| **byte != 0).count();
        let sum = file.iter().map(|byte| u64::from(*byte)).sum();
        Self { nonzero, length: file.len(), sum }
    }
}

/// A search for simpler files.
struct FileSearch<'s> {
    trials: Trials<'s>,
    best: Vec<u8>,
    measure: FileMeasure,
}

/// Minimizes a file with at most `tries` candidates.
pub(super) fn search(
    input: &[u8],
    tries: u64,
    judge: &mut dyn FnMut(&[u8]) -> ControlFlow<(), bool>,
    watch: &mut dyn FnMut(&MinimizeProgress) -> ControlFlow<()>,
) -> Minimized {
    let measure = FileMeasure::of(input);
    let trials = Trials::new(tries, measure.nonzero, judge, watch);
    let mut search = FileSearch { trials, best: input.to_vec(), measure };
    let settled = settle(
        &mut search,
        &[("end", cut_end), ("removed ranges", remove), ("zeros", zero), ("values", lower)],
    );
    search.trials.finish(search.best, settled)
}

impl<'s> AsMut<Trials<'s>> for FileSearch<'s> {
    fn as_mut(&mut self) -> &mut Trials<'s> {
        &mut self.trials
    }
}

impl FileSearch<'_> {
    /// Judges a file if it is simpler. Reports whether it is the best one now.
    fn propose(&mut self, candidate: Vec<u8>) -> bool {
        let measure = FileMeasure::of(&candidate);
        if self.trials.ended() || measure >= self.measure {
            return false;
        }
        let is_shown = self.trials.judged(&candidate, measure.nonzero);
        if is_shown {
            (self.best, self.measure) = (candidate, measure);
        }
        is_shown
    }

    /// Returns the range of `length` bytes that ends at `end`, cut to the file.
    fn range(&self, end: usize, length: usize) -> Range<usize> {
        let end = end.min(self.best.len());
        end.saturating_sub(length)..end
    }
}

/// Cuts the end: halves, quarters, and so on.
fn cut_end(search: &mut FileSearch) {
    let mut step = search.best.len();
    while step > 0 && !search.trials.ended() {
        let mut shorter = search.best.clone();
        shorter.truncate(search.best.len().saturating_sub(step));
        // The step stays: the rest may be cut, too.
        if !search.propose(shorter) {
            step /= 2;
        }
        step = step.min(search.best.len());
    }
}

/// Removes ranges, so that the bytes behind them move up: of a descriptor, say, which is text.
fn remove(search: &mut FileSearch) {
    let mut length = search.best.len() / 2;
    for _ in 0..REMOVED_HALVINGS {
        if length == 0 {
            return;
        }
        let mut end = search.best.len();
        while end > 0 && !search.trials.ended() {
            let range = search.range(end, length);
            end = range.start;
            let mut without = search.best.clone();
            without.drain(range);
            search.propose(without);
        }
        length /= 2;
    }
}

/// Zeroes ranges that are not zeros yet.
fn zero(search: &mut FileSearch) {
    let mut length = search.best.len().next_power_of_two();
    while length > 0 && !search.trials.ended() {
        // Ranges begin at multiples of their length, as tables do.
        for start in (0..search.best.len()).step_by(length) {
            let range = start..start.saturating_add(length).min(search.best.len());
            let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
            if search.trials.ended() || search.best.get(range.clone()).is_none_or(is_zero) {
                continue;
            }
            let mut zeroed = search.best.clone();
            zeroed.get_mut(range).into_iter().for_each(|bytes| bytes.fill(0));
            search.propose(zeroed);
        }
        length /= 2;
    }
}

/// Replaces bytes by 1, or clears one of their bits.
fn lower(search: &mut FileSearch) {
    for at in 0..search.best.len() {
        loop {
            let byte = search.best.get(at).copied().unwrap_or(0);
            let without_bit = (0..u8::BITS).rev().map(|bit| byte & !(1 << bit));
            let lower = [1].into_iter().chain(without_bit).filter(|it| (1..byte).contains(it));
            let with = |value: u8| {
                let mut other = search.best.clone();
                other.get_mut(at).into_iter().for_each(|byte| *byte = value);
                other
            };
            let candidates: Vec<_> = lower.map(with).collect();
            if !candidates.into_iter().any(|candidate| search.propose(candidate)) {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minimized(input: &[u8], tries: u64, shows: impl Fn(&[u8]) -> bool) -> Minimized {
        assert!(shows(input));
        let mut last = FileMeasure::of(input);
        let judge = &mut |candidate: &[u8]| {
            let is_shown = shows(candidate);
            let measure = FileMeasure::of(candidate);
            assert!(measure < last, "{measure:?} after {last:?}");
            if is_shown {
                last = measure;
            }
            ControlFlow::Continue(is_shown)
        };
        let minimized = search(input, tries, judge, &mut |_| ControlFlow::Continue(()));
        assert!(shows(&minimized.input));
        minimized
    }

    #[test]
    fn what_a_bug_needs_is_left() {
        let input: Vec<u8> = (0..10_000u32).map(|at| (at % 251) as u8).collect();
        // The bug needs one byte with its original value, and another byte with two bits set.
        let shows = |file: &[u8]| {
            file.get(4000) == input.get(4000)
                && file.get(100).is_some_and(|byte| byte & 0x44 == 0x44)
        };
        let found = minimized(&input, 100_000, shows);
        assert!(found.complete && found.input.len() == 4001);
        let left: Vec<_> = found.input.iter().enumerate().filter(|(_, it)| **it != 0).collect();
        assert_eq!(left, [(100, &0x44), (4000, &0xEB)]);
    }

    #[test]
    fn bytes_that_may_move_move_up() {
        let input = [&[7; 300][..], b"grain", &[9; 50]].concat();
        let found = minimized(&input, 100_000, |file| file.windows(5).any(|it| it == b"grain"));
        assert_eq!(found.input, b"grain");
    }
}
