//! Programs from fixed seeds, judged by every oracle.

use test_support::prelude::*;

#[test]
fn generated_programs_pass_every_oracle() {
    let mut harness = Harness::new(Walker::default());
    for rng_seed in 0..20_000 {
        let program = generate_any(rng_seed, 24);
        let input = program.encode();
        if let Err(failure) = harness.run(&input, Checks::AtCheckpoints) {
            panic!("seed {rng_seed}: {}\n{program}", failure.violation);
        }
    }
}
