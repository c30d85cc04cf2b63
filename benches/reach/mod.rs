//! The parts of the harness that programs reach, if random bytes are programs, and if `Arbitrary` makes the programs.

use std::rc::Rc;
use test_support::prelude::*;

use arbitrary::{Arbitrary, Unstructured};
use qcowfuzz::fuzzing::feedback::Recorder;
use qcowfuzz::internal::fuzzing::feedback::layout::Counter;

use test_support::planted::{Case, Faulty, extents, points, snapshots, walks};

/// Returns the program that a byte string stands for, encoded.
pub type Meaning = fn(&[u8]) -> Vec<u8>;

/// Both meanings of a byte string, with their names.
pub const MEANINGS: [(&str, Meaning); 2] =
    [("decoded bytes", <[u8]>::to_vec), ("`Arbitrary`", drawn)];

fn drawn(bytes: &[u8]) -> Vec<u8> {
    let program = Program::arbitrary_take_rest(Unstructured::new(bytes));
    program.expect("any bytes are a program").encode()
}

/// Returns random byte strings of one length, always the same ones.
pub fn strings(length: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut entropy = Entropy::new(length as u64);
    std::iter::repeat_with(move || (0..length).map(|_| entropy.next_u64() as u8).collect())
}

/// The sums over some programs, and the counters that any of them reaches.
#[derive(Debug, Default)]
pub struct Reach {
    pub operations: usize,
    pub effective: usize,
    pub images: usize,
    pub edges: usize,
    pub rare_events: usize,
    pub counters: usize,
}

impl Reach {
    /// Runs the programs under the target `map_extents`, with a recorder.
    pub fn of(inputs: impl Iterator<Item = Vec<u8>>) -> Self {
        let recorder = Rc::new(Recorder::new());
        let walker = Walker::observed(recorder.clone());
        let mut harness = Harness::observed(walker, recorder.clone());
        let (mut reach, mut reached) = (Self::default(), BTreeSet::new());
        for input in inputs {
            recorder.begin_run();
            match harness.run(&input, Checks::AtCheckpoints) {
                Ok(outcome) => {
                    reach.operations += outcome.operations;
                    reach.effective += outcome.effective;
                    reach.images += outcome.images;
                }
                Err(failure) => panic!("{}\n{:?}", failure.violation, Program::decode(&input)),
            }
            recorder.each(|index, _| {
                reached.insert(index);
            });
        }
        for counter in reached.iter().map(|index| Counter::at(*index)) {
            reach.edges += usize::from(matches!(counter, Some(Counter::Edge { .. })));
            reach.rare_events += usize::from(matches!(counter, Some(Counter::Rare(_))));
        }
        reach.counters = reached.len();
        reach
    }

    /// Returns the share of the operations that have an effect.
    pub fn effective_share(&self) -> f64 {
        self.effective as f64 / self.operations as f64
    }
}

/// Returns the bugs that tests plant in the walker's answers about single images.
pub fn planted_bugs() -> impl Iterator<Item = &'static Case> {
    extents::CASES.iter().chain(walks::CASES).chain(points::CASES).chain(snapshots::CASES)
}

/// Returns the number of planted bugs that some of the programs find.
pub fn found_bugs(inputs: &[Vec<u8>]) -> usize {
    let finds = |case: &&Case| {
        let mut harness = Harness::new(Faulty::new(case.fault));
        inputs.iter().any(|input| {
            let found = harness.run(input, Checks::AtCheckpoints);
            found.is_err_and(|it| it.violation.fingerprint().starts_with(case.fingerprints[0]))
        })
    };
    planted_bugs().filter(finds).count()
}
