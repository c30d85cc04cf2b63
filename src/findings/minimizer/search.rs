//! The search: the smallest program so far, and the candidates that may replace it. Candidates of inputs of every kind
//! are judged once each, up to a number of tries, and counted.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hasher};
use std::ops::ControlFlow;

use crate::base::limits::MAX_MINIMIZE_ROUNDS;
use crate::findings::panics::caught;
use crate::harness::cases::target::Inputs;
use crate::images::limits::Limits;
use crate::programs::program::framing::{fit_data, reframe};
use crate::programs::{Operation, Program, Vm};

use super::measure::Measure;

/// The settings of a minimization.
#[derive(Clone, Copy, Debug)]
pub struct MinimizeSettings {
    /// The kind of the target's inputs.
    pub inputs: Inputs,
    /// The limits of the target's programs. They mean nothing if its inputs are files.
    pub limits: Limits,
    /// The maximum number of candidates to judge.
    pub tries: u64,
    /// The number of other values of `rng_seed` to try if a program does not show the bug. Some oracles derive their
    /// questions from the checksum of the program, so any change of the program changes the questions. 0 for all other
    /// oracles. A file has no such value.
    pub rerolls: u16,
    /// True if programs may run in this process; false if the bug ends its process.
    pub runs_here: bool,
}

/// The number of values of `rng_seed` to try if the canonical form of an input does not show its bug.
const CANONICAL_REROLLS: u16 = 256;

/// A search for simpler programs.
pub(super) struct Search<'s> {
    settings: MinimizeSettings,
    pub(super) trials: Trials<'s>,
    /// The smallest input so far, in encoded form.
    pub(super) input: Vec<u8>,
    best: Program,
    measure: Measure,
}

impl<'s> Search<'s> {
    pub(super) fn new(
        input: &[u8],
        settings: MinimizeSettings,
        judge: &'s mut dyn FnMut(&[u8]) -> ControlFlow<(), bool>,
        watch: &'s mut dyn FnMut(&MinimizeProgress) -> ControlFlow<()>,
    ) -> Self {
        let best = Program::decode(input);
        let left = best.operations.len();
        Self {
            settings,
            trials: Trials::new(settings.tries, left, judge, watch),
            input: input.to_vec(),
            measure: Measure::of(&best),
            best,
        }
    }

    /// Returns the simplest program so far.
    pub(super) fn best(&self) -> &Program {
        &self.best
    }

    /// Runs the first `operations` of a program. Returns `None` if the search has ended, if the bug may end this
    /// process, or if the run panics: the bug may be in the virtual machine.
    pub(super) fn run(&self, program: &Program, operations: usize) -> Option<Vm> {
        if !self.settings.runs_here || self.trials.ended() {
            return None;
        }
        let run = || {
            let mut vm = Vm::new();
            vm.begin(&program.prologue, self.settings.limits);
            for operation in program.operations.iter().take(operations) {
                vm.step(*operation);
            }
            vm
        };
        caught(run).ok()
    }

    /// Replaces the input by its canonical form. An oracle that derives its questions from the checksum asks other
    /// questions then. If the canonical form does not show the bug, the search tries other seeds.
    pub(super) fn canonical(&mut self) {
        let best = self.best.clone();
        if self.input == best.encode() || self.judged(best.clone()) {
            return;
        }
        let _ = (0..CANONICAL_REROLLS).any(|seed| self.judged(seeded(&best, seed)));
    }

    /// Judges a program if it is simpler. Reports whether it is the best one now.
    pub(super) fn propose(&mut self, mut candidate: Program) -> bool {
        reframe(&mut candidate.operations);
        if self.trials.ended() || Measure::of(&candidate) >= self.measure {
            return false;
        }
        let rerolls = self.settings.rerolls;
        self.judged(candidate.clone())
            || (0..rerolls).any(|seed| {
                let seeded = seeded(&candidate, seed);
                Measure::of(&seeded) < self.measure && self.judged(seeded)
            })
    }

    /// Proposes the best program with another operation at index `at`.
    pub(super) fn propose_at(&mut self, at: usize, operation: Operation) -> bool {
        if self.trials.ended()
            || self.best.operations.get(at).is_none_or(|before| *before == operation)
        {
            return false;
        }
        let mut candidate = self.best.clone();
        candidate.operations.get_mut(at).into_iter().for_each(|before| *before = operation);
        fit_data(&mut candidate.operations, at);
        self.propose(candidate)
    }

    /// Proposes the best program with only the operations that `keep` accepts.
    pub(super) fn propose_kept(&mut self, mut keep: impl FnMut(usize, &Operation) -> bool) -> bool {
        if self.trials.ended() {
            return false;
        }
        let mut candidate = self.best.clone();
        let mut at = 0;
        candidate.operations.retain(|operation| {
            at += 1;
            keep(at - 1, operation)
        });
        candidate.operations.len() < self.best.operations.len() && self.propose(candidate)
    }

    fn judged(&mut self, candidate: Program) -> bool {
        let input = candidate.encode();
        if !self.trials.judged(&input, candidate.operations.len()) {
            return false;
        }
        self.measure = Measure::of(&candidate);
        (self.best, self.input) = (candidate, input);
        true
    }
}

impl<'s> AsMut<Trials<'s>> for Search<'s> {
    fn as_mut(&mut self) -> &mut Trials<'s> {
        &mut self.trials
    }
}

/// A way to make inputs simpler: its name, and a function that proposes all simpler inputs of its kind.
pub(super) type Reducer<S> = (&'static str, fn(&mut S));

/// Runs all reducers in turn until none of them makes progress, and reports whether that is so.
pub(super) fn settle<'s, S: AsMut<Trials<'s>>>(search: &mut S, reducers: &[Reducer<S>]) -> bool {
    for _ in 0..MAX_MINIMIZE_ROUNDS {
        let before = search.as_mut().progress.kept;
        for (name, reduce) in reducers {
            search.as_mut().progress.reducer = name;
            reduce(search);
        }
        let trials = search.as_mut();
        if trials.progress.kept == before || trials.ended() {
            return trials.progress.kept == before;
        }
    }
    false
}

fn seeded(program: &Program, rng_seed: u16) -> Program {
    let mut seeded = program.clone();
    seeded.prologue.rng_seed = rng_seed;
    seeded
}

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
