//! The programs that the benchmarks run, and the clock with which they measure.

use std::hint::black_box;
use std::time::Duration;

use qcowfuzz::harness::{Checks, Harness, Outcome};
use qcowfuzz::programs::Program;
use qcowfuzz::programs::generate::{GenerateSettings, generate};
use rustix::time::{ClockId, clock_gettime};

/// The seeds of the frozen set.
pub const SET: std::ops::Range<u64> = 0..1000;
/// The number of operations of each of its programs.
pub const OPERATIONS: usize = 20;
/// The number of rounds over each set. The fastest round counts: other processes can only slow a round down.
pub const ROUNDS: u32 = 30;

/// The name of each set, and whether its programs have compressed clusters.
pub const SETS: [(&str, bool); 2] = [("without compressed clusters", false), ("with them", true)];

pub type Inputs = Vec<Vec<u8>>;

pub fn set(wanted: GenerateSettings) -> Vec<Program> {
    SET.map(|rng_seed| generate(rng_seed, wanted)).collect()
}

/// Returns the inputs of the evolved set: the corpus of a campaign, which includes a few costly runs.
pub fn evolved() -> Inputs {
    let lines = include_str!("evolved.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| hex::decode(line).expect("hexadecimal digits")).collect()
}

pub fn encoded(programs: impl IntoIterator<Item = Program>) -> Inputs {
    programs.into_iter().map(|program| program.encode()).collect()
}

/// Runs the programs once and returns the sum of their outcomes.
pub fn run_all(harness: &mut Harness, programs: &[Vec<u8>]) -> Outcome {
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

/// Returns the CPU time that this thread has used.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
