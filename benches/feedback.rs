//! Measures the cost of the recorder (`-- cost`), and what random bytes reach with and without `Arbitrary`
//! (`-- arbitrary`). It is a separate binary because compiling the harness a second time changes the rate that `rate`
//! measures.

mod reach;
mod sets;

use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use qcowfuzz::fuzzing::feedback::Recorder;
use test_support::prelude::*;

use reach::{MEANINGS, Reach, found_bugs, planted_bugs, strings};
use sets::{OPERATIONS, ROUNDS, SETS, cpu_time, encoded, evolved, run_all, set};

/// The numbers of byte strings: for what they reach, and for the planted bugs.
const STRINGS: usize = 2000;
const HUNTING_STRINGS: [usize; 2] = [10, 100];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = |name: &str| arguments.iter().any(|argument| argument == name);
    // `cargo test` builds benchmarks too; only `cargo bench` measures.
    if !asked("--bench") {
        return;
    }
    let all = arguments.len() == 1;
    if all || asked("cost") {
        cost();
        println!();
    }
    if all || asked("arbitrary") {
        arbitrary();
    }
}

/// Prints what byte strings of the same lengths reach. These are counts, and the same on any machine.
fn arbitrary() {
    println!(
        "| bytes | program | operations | with an effect | images | edges | rare events | counters | bugs, {} \
         strings | bugs, {} strings |",
        HUNTING_STRINGS[0], HUNTING_STRINGS[1]
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for length in [512, 4096] {
        for (name, meaning) in MEANINGS {
            let inputs: Vec<_> =
                strings(length).take(STRINGS).map(|bytes| meaning(&bytes)).collect();
            let reach = Reach::of(inputs.iter().cloned());
            let bugs = HUNTING_STRINGS.map(|count| found_bugs(&inputs[..count]));
            println!(
                "| {length} | {name} | {} | {:.1}% | {} | {} | {} | {} | {} of {} | {} |",
                reach.operations,
                100.0 * reach.effective_share(),
                reach.images,
                reach.edges,
                reach.rare_events,
                reach.counters,
                bugs[0],
                planted_bugs().count(),
                bugs[1],
            );
        }
    }
}

/// Prints, for each set, the time of the fastest round with a recorder, divided by that without. The two take turns.
fn cost() {
    println!("| programs | observed by a recorder |");
    println!("|---|---|");
    let generated = SETS.map(|(name, compressed)| {
        (name, encoded(set(GenerateSettings { operations: OPERATIONS, compressed })))
    });
    for (name, inputs) in generated.into_iter().chain([("the evolved set", evolved())]) {
        let mut alone = Harness::new(Walker::default());
        let recorder = Rc::new(Recorder::new());
        let mut observed = Harness::observed(Walker::observed(recorder.clone()), recorder.clone());
        let mut times = [Duration::MAX; 2];
        for _ in 0..ROUNDS {
            let start = cpu_time();
            black_box(run_all(&mut alone, &inputs));
            let turn = cpu_time();
            for input in &inputs {
                recorder.begin_run();
                black_box(run_all(&mut observed, std::slice::from_ref(input)));
            }
            times = [times[0].min(turn - start), times[1].min(cpu_time() - turn)];
        }
        println!("| {name} | {:.3} × |", times[1].as_secs_f64() / times[0].as_secs_f64());
    }
}
