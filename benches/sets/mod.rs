//! What the benchmarks run, and how they measure.

use std::hint::black_box;
use std::time::Duration;

use qcowfuzz::harness::engine::Engine;
use qcowfuzz::harness::{Checks, Harness, Outcome};
use qcowfuzz::internal::disk::observer::Observer;
use qcowfuzz::programs::Program;
use qcowfuzz::programs::generate::{Wanted, generate};
use rustix::time::{ClockId, clock_gettime};

/// The frozen set: these seeds, this many operations.
pub const SET: std::ops::Range<u64> = 0..1000;
pub const OPERATIONS: usize = 20;
/// How often each set is run. The fastest counts: the machine is shared, and nothing makes a run
/// faster than it is.
pub const ROUNDS: u32 = 30;

/// Both sets, by name.
pub const SETS: [(&str, bool); 2] = [("without compressed clusters", false), ("with them", true)];

pub type Inputs = Vec<Vec<u8>>;

pub fn set(wanted: Wanted) -> Vec<Program> {
    SET.map(|rng_seed| generate(rng_seed, wanted)).collect()
}

/// The inputs of the evolved set: what a campaign keeps, with its tail of costly runs.
pub fn evolved() -> Inputs {
    let lines = include_str!("evolved.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| hex::decode(line).expect("hexadecimal digits")).collect()
}

pub fn encoded(programs: impl IntoIterator<Item = Program>) -> Inputs {
    programs.into_iter().map(|program| program.encode()).collect()
}

/// Runs the programs once; the sum of their outcomes.
pub fn run_all<E: Engine, O: Observer>(
    harness: &mut Harness<E, O>,
    programs: &[Vec<u8>],
) -> Outcome {
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

/// The CPU time that this thread has used.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
