//! Programs that together have every part of the format and every pair of parts that the format allows together.

use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::internal::images::entropy::Entropy;

use crate::Case;
use crate::files::{MAX_FILE_BYTES, too_long};
use crate::parts::{self, Part, Trace};

/// The lowest number of programs that must have each part.
pub const ENOUGH: u32 = 20;
/// The number of programs of random parts that are always judged.
const RANDOM_PROGRAMS: u64 = 200;
/// The highest number of attempts to make a program for a missing pair.
const TRIES: u64 = 200;

/// Programs, and the number of programs that have each pair of parts.
pub struct Pairs {
    pub all: Vec<Part>,
    /// The number of programs that have both parts, for each pair of parts.
    pub had: Vec<Vec<u32>>,
    pub cases: Vec<Case>,
    entropy: Entropy,
    rng_seed: u64,
}

impl Pairs {
    /// Returns programs of random parts, and then programs for every part that is too rare and for every pair that is
    /// missing.
    pub fn chosen() -> Self {
        let all = parts::all();
        let had = vec![vec![0; all.len()]; all.len()];
        let entropy = Entropy::new(9);
        let mut pairs = Self { all, had, cases: Vec::new(), entropy, rng_seed: 0 };
        for _ in 0..RANDOM_PROGRAMS {
            let wanted = parts::some(&mut pairs.entropy);
            pairs.keep_if(&wanted, &[]);
        }
        for one in 0..pairs.all.len() {
            for other in 0..=one {
                let least = if one == other { ENOUGH } else { 1 };
                if !parts::allowed(&pairs.all[one], &pairs.all[other]) {
                    continue;
                }
                for _ in 0..TRIES {
                    if pairs.had[one][other] >= least {
                        break;
                    }
                    let mut wanted = parts::some(&mut pairs.entropy);
                    // Adds a few other parts, in any order.
                    wanted.truncate(pairs.entropy.below(4) as usize);
                    let at = pairs.entropy.below(wanted.len() as u64 + 1) as usize;
                    wanted.insert(at, pairs.all[one]);
                    wanted.push(pairs.all[other]);
                    pairs.keep_if(&wanted, &[one, other]);
                }
            }
        }
        pairs
    }

    /// Makes a program of the `wanted` parts, and keeps it if it has those that are `needed`.
    fn keep_if(&mut self, wanted: &[Part], needed: &[usize]) {
        let rng_seed = self.rng_seed;
        self.rng_seed += 1;
        let program = parts::program(rng_seed, wanted);
        let trace = Trace::of(&program);
        // tests/qemu_formats.rs has the parts of images in other formats.
        if trace.images.top().format != ImageFormat::Qcow2 {
            return;
        }
        let had = |at: &usize| (self.all[*at].had)(&trace);
        if !needed.iter().all(had) || too_long(&trace.images, MAX_FILE_BYTES).is_some() {
            return;
        }
        let there: Vec<usize> = (0..self.all.len()).filter(had).collect();
        for one in &there {
            there.iter().for_each(|other| self.had[*one][*other] += 1);
        }
        let names: Vec<_> = there.iter().map(|at| self.all[*at].name).collect();
        let name = format!("parts of {rng_seed}: {}", names.join(", "));
        self.cases.push(Case { name, input: program.encode() });
    }

    /// Returns the pairs that the format allows and no program has, the pairs that it forbids and a program has, and
    /// the number of allowed pairs.
    pub fn missing(&self) -> (Vec<(usize, usize)>, usize) {
        let (mut missing, mut count) = (Vec::new(), 0);
        for one in 0..self.all.len() {
            for other in 0..one {
                let allowed = parts::allowed(&self.all[one], &self.all[other]);
                count += usize::from(allowed);
                if allowed != (self.had[one][other] > 0) {
                    missing.push((one, other));
                }
            }
        }
        (missing, count)
    }
}
