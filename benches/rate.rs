//! What a run costs: `cargo bench` prints the tables of `docs/performance.md`, `cargo bench -- rate`
//! and `cargo bench -- growth` one of them. Only the ratios of one table's rows mean anything
//! elsewhere.

use std::hint::black_box;
use std::time::{Duration, Instant};

use qcowfuzz::engines::Walker;
use qcowfuzz::harness::{Checks, Harness, Outcome};
use qcowfuzz::vm::generate::{Wanted, generate};
use qcowfuzz::vm::operand::{Number, Size};
use qcowfuzz::vm::{Operation, Program};

/// The frozen set: these seeds, this many operations.
const SET: std::ops::Range<u64> = 0..1000;
const OPERATIONS: usize = 20;
/// How often each set is run. The fastest counts: the machine is shared, and nothing makes a run
/// faster than it is.
const ROUNDS: u32 = 30;

type Inputs = Vec<Vec<u8>>;

fn set(wanted: Wanted) -> Vec<Program> {
    SET.map(|rng_seed| generate(rng_seed, wanted)).collect()
}

fn encoded(programs: impl IntoIterator<Item = Program>) -> Inputs {
    programs.into_iter().map(|program| program.encode()).collect()
}

/// Runs the programs once; the sum of their outcomes.
fn run_all(harness: &mut Harness<Walker>, programs: &Inputs) -> Outcome {
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

/// The fastest round of each set; the sets take turns, so that a slow minute is everybody's.
fn fastest(sets: &[&Inputs]) -> Vec<Duration> {
    let mut harness = Harness::new(Walker::default());
    let mut times = vec![Duration::MAX; sets.len()];
    for _ in 0..ROUNDS {
        for (time, set) in times.iter_mut().zip(sets) {
            let start = Instant::now();
            black_box(run_all(&mut harness, set));
            *time = start.elapsed().min(*time);
        }
    }
    times
}

fn rates() {
    println!("| programs | operations | take effect | images a second, one core |");
    println!("|---|---|---|---|");
    for (name, compressed) in [("without compressed clusters", false), ("with them", true)] {
        let inputs = encoded(set(Wanted { operations: OPERATIONS, compressed }));
        let outcome = run_all(&mut Harness::new(Walker::default()), &inputs);
        let time = fastest(&[&inputs])[0];
        println!(
            "| {name} | {} | {:.1}% | {:.0} |",
            outcome.operations / inputs.len(),
            outcome.effective as f64 * 100.0 / outcome.operations as f64,
            outcome.images as f64 / time.as_secs_f64()
        );
    }
}

/// The programs of the set on a disk of another geometry, without the operations that change it.
fn on_disk(operations: usize, cluster_bits: u8, size: Size) -> Inputs {
    let programs = set(Wanted { operations, compressed: false });
    encoded(programs.into_iter().map(|mut program| {
        program.prologue.cluster_bits = Number::new(cluster_bits).expect("a cluster size");
        program.prologue.size = size;
        program.operations.retain(|operation| !matches!(operation, Operation::Resize { .. }));
        program
    }))
}

fn growth() {
    let mib = Size::new(1, 20, 0).expect("a size");
    let pib = Size::new(8, 47, 0).expect("a size");
    let gib = Size::new(1, 30, 0).expect("a size");
    let pairs = [
        ("1 MiB → 1 PiB, 64 KiB clusters", (20, 16, mib), (20, 16, pib)),
        ("64 KiB → 2 MiB clusters, 1 GiB", (20, 16, gib), (20, 21, gib)),
        ("64 KiB → 512-byte clusters, 1 GiB", (20, 16, gib), (20, 9, gib)),
        ("20 → 40 operations, 64 KiB clusters, 1 GiB", (20, 16, gib), (40, 16, gib)),
    ];
    println!("| from → to | time of a run |");
    println!("|---|---|");
    for (name, from, to) in pairs {
        let set_of = |(operations, bits, size)| on_disk(operations, bits, size);
        let times = fastest(&[&set_of(from), &set_of(to)]);
        println!("| {name} | {:.2} × |", times[1].as_secs_f64() / times[0].as_secs_f64());
    }
}

fn main() {
    // `cargo test` builds benchmarks too; only `cargo bench` measures.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = |name: &str| arguments.iter().any(|argument| argument == name);
    if !asked("--bench") {
        return;
    }
    let all = arguments.len() == 1;
    if all || asked("rate") {
        rates();
        println!();
    }
    if all || asked("growth") {
        growth();
    }
}
