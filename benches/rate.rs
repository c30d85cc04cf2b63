//! What a run costs: `cargo bench` prints the tables of `docs/performance.md`. All figures are ratios
//! within one run, or say which machine they are of.

use std::hint::black_box;
use std::time::{Duration, Instant};

use qcowfuzz::engines::Walker;
use qcowfuzz::harness::{Checks, Harness, Outcome};
use qcowfuzz::vm::Program;
use qcowfuzz::vm::generate::{Wanted, generate};

/// The frozen set: these seeds, this many operations.
const SET: std::ops::Range<u64> = 0..1000;
const OPERATIONS: usize = 20;

fn set(compressed: bool) -> Vec<Vec<u8>> {
    let wanted = Wanted { operations: OPERATIONS, compressed };
    SET.map(|rng_seed| generate(rng_seed, wanted).encode()).collect()
}

/// Runs the programs once; the sum of their outcomes.
fn run_all(harness: &mut Harness<Walker>, programs: &[Vec<u8>]) -> Outcome {
    let mut sum = Outcome::default();
    for program in programs {
        match harness.run(black_box(program), Checks::AtCheckpoints) {
            Ok(outcome) => {
                sum.operations += outcome.operations;
                sum.effective += outcome.effective;
                sum.images += outcome.images;
            }
            Err(failure) => panic!("{}\n{:?}", failure.violation, Program::decode(program)),
        }
    }
    sum
}

/// The fastest of several rounds: the machine is shared, and nothing makes a run faster than it is.
fn fastest(rounds: u32, mut round: impl FnMut()) -> Duration {
    (0..rounds)
        .map(|_| {
            let start = Instant::now();
            round();
            start.elapsed()
        })
        .min()
        .unwrap_or_default()
}

fn rates(only: Option<&str>) {
    println!("| programs | operations | take effect | images a second, one core |");
    println!("|---|---|---|---|");
    for (name, compressed) in [("plain", false), ("with compressed clusters", true)] {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let programs = set(compressed);
        let mut harness = Harness::new(Walker::default());
        let outcome = run_all(&mut harness, &programs);
        let time = fastest(15, || {
            black_box(run_all(&mut harness, &programs));
        });
        println!(
            "| {name} | {} | {:.1}% | {:.0} |",
            outcome.operations / programs.len(),
            outcome.effective as f64 * 100.0 / outcome.operations as f64,
            outcome.images as f64 / time.as_secs_f64()
        );
    }
}

fn main() {
    // `cargo test` builds benchmarks too; only `cargo bench` measures.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--bench") {
        rates(arguments.iter().map(String::as_str).find(|argument| *argument != "--bench"));
    }
}
