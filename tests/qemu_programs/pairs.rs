//! Programs in which every part of the format, and every pair of parts that go together, is there.

use qcowfuzz::internal::images::entropy::Entropy;

use crate::Case;
use crate::files::too_long;
use crate::parts::{self, Part, Trace};

/// In how many programs every part must be.
pub const ENOUGH: u32 = 20;
/// How many programs of random parts are judged, whatever they add.
const RANDOM_PROGRAMS: u64 = 200;
/// How many programs are tried for a pair that is in none so far.
const TRIES: u64 = 200;

/// Programs, and which parts each two of them had together.
pub struct Pairs {
    pub all: Vec<Part>,
    /// How many programs had both of two parts.
    pub had: Vec<Vec<u32>>,
    pub cases: Vec<Case>,
    entropy: Entropy,
    rng_seed: u64,
}

impl Pairs {
    /// Programs of random parts; then, for every part that was not there often enough and for every pair
    /// that was not there at all, programs that ask for it.
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
                    // With a few others, in any order.
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

    /// Makes a program of the `wanted` parts and keeps it, if it had those that are `needed`.
    fn keep_if(&mut self, wanted: &[Part], needed: &[usize]) {
        let rng_seed = self.rng_seed;
        self.rng_seed += 1;
        let program = parts::program(rng_seed, wanted);
        let trace = Trace::of(&program);
        let had = |at: &usize| (self.all[*at].had)(&trace);
        if !needed.iter().all(had) || too_long(&trace.images).is_some() {
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

    /// The pairs that the format allows together and no program had, or the other way round; and how many
    /// it allows.
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
