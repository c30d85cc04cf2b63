//! Programs from fixed seeds, judged by every oracle.

use qcowfuzz::harness::{Checks, Harness, Walker};
use qcowfuzz::programs::generate::{GenerateSettings, generate};

#[test]
fn generated_programs_pass_every_oracle() {
    let mut harness = Harness::new(Walker::default());
    for rng_seed in 0..20_000 {
        let program =
            generate(rng_seed, GenerateSettings { operations: 24, compressed: rng_seed % 2 == 0 });
        let input = program.encode();
        if let Err(failure) = harness.run(&input, Checks::AtCheckpoints) {
            panic!("seed {rng_seed}: {}\n{program}", failure.violation);
        }
    }
}
