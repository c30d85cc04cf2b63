//! Programs in formats other than qcow2, judged by all oracles.

use qcowfuzz::harness::{Checks, Harness, Walker};
use qcowfuzz::internal::programs::operand::{Base, ImageForm};
use qcowfuzz::programs::generate::generate_any;

#[test]
fn images_of_every_format_are_walked_as_the_model_says() {
    let mut harness = Harness::new(Walker::default());
    let mut effective = 0;
    const BASES: [Base; 2] = [Base::Vpc, Base::Vmdk];
    for rng_seed in 0..600 * BASES.len() as u64 {
        let mut program = generate_any(rng_seed, 16);
        program.prologue.base = BASES[rng_seed as usize % BASES.len()];
        program.prologue.form = ImageForm((rng_seed as u16).wrapping_mul(0x9e37));
        let run = harness.run(&program.encode(), Checks::AfterEach);
        effective +=
            run.unwrap_or_else(|failure| panic!("{rng_seed}: {failure:?}\n{program}")).effective;
    }
    assert!(effective > 2000, "{effective}");
}
