//! The candidates of a search, for inputs of every kind: judges each once, up to a number of tries, and counts them.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hasher};
use std::ops::ControlFlow;

/// The progress of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinimizeProgress {
    /// The name of the current reducer.
    pub reducer: &'static str,
    /// The number of candidates that were judged.
    pub tries: u64,
    /// The number of candidates that replaced their predecessor.
    pub kept: u64,
    /// The size of the simplest input so far: the number of operations of a program, or of bytes that are not 0 in a
    /// file.
    pub left: usize,
}

/// The result of a minimization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Minimized {
    /// The simplest input; a program is in canonical form if that shows the bug.
    pub input: Vec<u8>,
    /// The number of candidates that were judged.
    pub tries: u64,
    /// The number of candidates that replaced their predecessor.
    pub kept: u64,
    /// True if no simpler candidate was left: neither tries nor rounds ran out, and the caller did not stop the search.
    pub complete: bool,
}

/// The candidates of a search.
pub(super) struct Trials<'s> {
    /// Reports whether an input shows the bug, or ends the search.
    judge: &'s mut dyn FnMut(&[u8]) -> ControlFlow<(), bool>,
    watch: &'s mut dyn FnMut(&MinimizeProgress) -> ControlFlow<()>,
    /// The maximum number of candidates to judge.
    tries: u64,
    /// Hashes of the candidates that did not show the bug; the candidates themselves could take gigabytes.
    rejected: BTreeSet<u64>,
    progress: MinimizeProgress,
    stopped: bool,
}

impl<'s> Trials<'s> {
    /// Begins a search whose first input has the size `left`.
    pub(super) fn new(
        tries: u64,
        left: usize,
        judge: &'s mut dyn FnMut(&[u8]) -> ControlFlow<(), bool>,
        watch: &'s mut dyn FnMut(&MinimizeProgress) -> ControlFlow<()>,
    ) -> Self {
        let progress = MinimizeProgress { reducer: "", tries: 0, kept: 0, left };
        Self { judge, watch, tries, rejected: BTreeSet::new(), progress, stopped: false }
    }

    /// Records the reducer that runs from now on.
    pub(super) fn begin(&mut self, reducer: &'static str) {
        self.progress.reducer = reducer;
    }

    /// Returns the number of candidates that replaced their predecessor.
    pub(super) fn kept(&self) -> u64 {
        self.progress.kept
    }

    /// Reports whether the search has ended: the caller stopped it, or no tries are left.
    pub(super) fn ended(&self) -> bool {
        self.stopped || self.progress.tries >= self.tries
    }

    /// Judges a candidate of the size `left`. Reports whether it shows the bug: then it replaces its predecessor.
    pub(super) fn judged(&mut self, candidate: &[u8], left: usize) -> bool {
        let hash = hash(candidate);
        if self.ended() || self.rejected.contains(&hash) {
            return false;
        }
        if (self.watch)(&self.progress).is_break() {
            self.stopped = true;
            return false;
        }
        self.progress.tries += 1;
        match (self.judge)(candidate) {
            ControlFlow::Continue(true) => {
                self.progress.kept += 1;
                self.progress.left = left;
                true
            }
            ControlFlow::Continue(false) => {
                self.rejected.insert(hash);
                false
            }
            ControlFlow::Break(()) => {
                self.stopped = true;
                false
            }
        }
    }

    /// Returns the result with the simplest input; `settled` states that no reducer made progress any more.
    pub(super) fn finish(self, input: Vec<u8>, settled: bool) -> Minimized {
        let complete = settled && !self.ended();
        let MinimizeProgress { tries, kept, .. } = self.progress;
        Minimized { input, tries, kept, complete }
    }
}

fn hash(input: &[u8]) -> u64 {
    // The hasher has no random keys, so the hash is the same in every process.
    let mut hasher = DefaultHasher::new();
    hasher.write(input);
    hasher.finish()
}
