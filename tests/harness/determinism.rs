//! The result of an input does not depend on earlier inputs, their order or the thread. Fuzzing, replay and
//! minimization require this.

use std::thread;

use qcowfuzz::harness::{Failure, Outcome};
use test_support::prelude::*;

/// The observable result of a run.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    outcome: Result<Outcome, Box<Failure>>,
    expected: Vec<Extent>,
    actual: Vec<Extent>,
    length_bytes: u64,
    written: Vec<(u64, Vec<u8>)>,
    program: String,
}

fn run(harness: &mut Harness, input: &[u8], checks: Checks) -> Seen {
    let outcome = harness.run(input, checks);
    let image = harness.image();
    Seen {
        outcome,
        expected: harness.expected().to_vec(),
        actual: harness.actual().to_vec(),
        length_bytes: image.length_bytes(),
        written: image.written().map(|it| (it.offset.get(), it.bytes.to_vec())).collect(),
        program: harness.program().to_string(),
    }
}

/// Returns programs of every geometry, and bytes that no encoder produces.
fn inputs() -> Vec<Vec<u8>> {
    let mut entropy = Entropy::new(17);
    (0..182)
        .map(|rng_seed| match rng_seed % 4 {
            3 => (0..entropy.below(300)).map(|_| entropy.next_u64() as u8).collect(),
            _ => generate(rng_seed, GenerateSettings { operations: 24, compressed: true }).encode(),
        })
        .collect()
}

fn fresh(inputs: &[Vec<u8>], checks: Checks) -> Vec<Seen> {
    let alone = |input: &Vec<u8>| run(&mut Harness::new(Walker::default()), input, checks);
    inputs.iter().map(alone).collect()
}

#[test]
fn a_used_harness_is_like_a_fresh_one_in_any_order() {
    let inputs = inputs();
    for checks in [Checks::AtCheckpoints, Checks::AfterChanges, Checks::AfterEach] {
        let fresh = fresh(&inputs, checks);
        let mut used = Harness::new(Walker::default());
        for at in (0..inputs.len()).chain((0..inputs.len()).rev()) {
            assert_eq!(run(&mut used, &inputs[at], checks), fresh[at], "input {at}");
        }
        let mut entropy = Entropy::new(5);
        for _ in 0..inputs.len() {
            let at = entropy.below(inputs.len() as u64) as usize;
            // A build without a judgement does not affect later runs either.
            used.build(&inputs[entropy.below(inputs.len() as u64) as usize]);
            assert_eq!(run(&mut used, &inputs[at], checks), fresh[at], "input {at}");
        }
    }
}

#[test]
fn every_thread_sees_the_same() {
    let inputs = inputs();
    let here = fresh(&inputs, Checks::AtCheckpoints);
    let there = |first: usize| {
        let inputs = inputs.clone();
        thread::spawn(move || {
            let mut harness = Harness::new(Walker::default());
            let order = (0..inputs.len()).map(|n| (n * 5 + first) % inputs.len());
            let run = |at: usize| (at, run(&mut harness, &inputs[at], Checks::AtCheckpoints));
            order.map(run).collect::<Vec<_>>()
        })
    };
    for thread in [there(0), there(91)] {
        for (at, seen) in thread.join().unwrap() {
            assert_eq!(seen, here[at], "input {at}");
        }
    }
}

#[test]
fn the_number_of_checks_does_not_change_the_image() {
    let mut harness = Harness::new(Walker::default());
    for input in inputs() {
        let often = run(&mut harness, &input, Checks::AfterEach);
        let seldom = run(&mut harness, &input, Checks::AtCheckpoints);
        harness.build(&input);
        let image = harness.image();
        let built: Vec<_> =
            image.written().map(|it| (it.offset.get(), it.bytes.to_vec())).collect();
        assert_eq!(often.written, seldom.written);
        assert_eq!(built, seldom.written);
        assert_eq!((often.expected, often.actual), (seldom.expected, seldom.actual));
    }
}

#[test]
fn a_violation_is_the_same_each_time() {
    // A harness that has just found a bug gives the same results as a new one.
    let mut harness = Harness::new(Changed::walker(Liar));
    let mut found = Vec::new();
    for input in inputs().iter().chain(&inputs()) {
        found.push(harness.run(input, Checks::AtCheckpoints).err());
    }
    let (first, second) = found.split_at(found.len() / 2);
    assert_eq!(first, second);
    assert!(first.iter().flatten().count() > 50);
}

/// An engine whose look-ups all fail.
#[derive(Clone, Default)]
struct Liar;

impl Change for Liar {
    fn status(&mut self, _: &mut Inner, _: GuestOffset) -> Answer<GuestRun> {
        Err(EngineError::untyped("no"))
    }
}
