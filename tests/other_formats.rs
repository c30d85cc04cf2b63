//! Programs in formats other than qcow2, judged by all oracles.

#[allow(dead_code)]
mod lines;

use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::harness::{Checks, Harness, Walker};
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::internal::programs::operand::{Base, ImageForm, Size};
use qcowfuzz::programs::Program;
use qcowfuzz::programs::generate::{generate_any, vary_vmdk};

/// Returns the bases whose lowest file is no qcow2 image.
fn bases() -> Vec<Base> {
    Base::all().filter(|base| !matches!(base, Base::Qcow2 | Base::Raw)).collect()
}

const OVERLAY: &str = "overlay version=3 cluster_bits=14 refcount_order=4 features=extended_l2 data_in=image \
                       size=same";

/// Returns a program on a base that the seed selects. Every bit of its form occurs with every other.
fn program(rng_seed: u64) -> Program {
    let mut program = generate_any(rng_seed, 16);
    program.prologue.base = bases()[rng_seed as usize % bases().len()];
    program.prologue.form = ImageForm((rng_seed as u16).wrapping_mul(0x9e37));
    if program.prologue.base.reach() == Base::large(ImageFormat::Vpc).reach() {
        // Twice as many blocks as a disk with another base has: the table of a larger one takes long to read.
        let bits = program.prologue.plan().geometry.cluster_size.bits() as u8;
        program.prologue.size = Size::new(1, bits + 15, 512).unwrap();
    }
    if program.prologue.base == Base::SparseRaw {
        // Only an overlay makes a raw file of the image.
        program.operations.insert(8, lines::operations(OVERLAY).remove(0));
    }
    if program.prologue.base.format() == ImageFormat::Vmdk {
        vary_vmdk(&mut program, &mut Entropy::new(rng_seed));
    }
    program
}

#[test]
fn images_of_every_format_are_walked_as_the_model_says() {
    let mut harness = Harness::new(Walker::default());
    let mut effective = 0;
    for rng_seed in 0..400 * bases().len() as u64 {
        let program = program(rng_seed);
        let run = harness.run(&program.encode(), Checks::AfterEach);
        effective +=
            run.unwrap_or_else(|failure| panic!("{rng_seed}: {failure:?}\n{program}")).effective;
    }
    assert!(effective > 2000, "{effective}");
}

#[test]
fn other_targets_find_nothing_in_images_of_every_format() {
    for kind in [TargetKind::Refcounts, TargetKind::Hostile] {
        let mut target = kind.judging(Walker::default());
        for rng_seed in 0..60 * bases().len() as u64 {
            let program = program(rng_seed);
            let run = target.run(&program.encode(), Checks::AtCheckpoints);
            run.unwrap_or_else(|failure| panic!("{rng_seed}: {failure:?}\n{program}"));
        }
    }
}
