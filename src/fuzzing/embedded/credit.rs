//! Which mutations pay: those whose children were kept are chosen more often, for a while.

use serde::{Deserialize, Serialize};

use crate::fuzzing::mutators::{MUTATIONS, Used, Weights};

/// After so many children, what was counted before counts half.
const HALF_LIFE: u64 = 1 << 13;
/// A child that was kept counts as so many: the counts are halved, and few children are kept.
const KEPT: u64 = 1 << 10;
/// How far credit changes a weight, both ways: to a quarter, and to four times as much.
const EVEN: u64 = 64;
const MIN_CREDIT: u64 = EVEN / 4;
const MAX_CREDIT: u64 = EVEN * 4;
/// So many children each mutation has to begin with, of which as many were kept as of all.
const CHILDREN: u128 = 1 << 8;

/// How many children each mutation had a part in, and how many of them were kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credit {
    bred: u64,
    children: Weights,
    kept: Weights,
}

impl Credit {
    /// How often each mutation is to be chosen now, relative to the others.
    pub fn weights(&self) -> Weights {
        let all = |counts: &Weights| u128::from(counts.iter().sum::<u64>());
        let (children, kept) = (all(&self.children) + CHILDREN, all(&self.kept) + u128::from(KEPT));
        let mut weights = Weights::default();
        for (place, weight) in weights.iter_mut().enumerate() {
            // How many of its children are kept, over how many of all are; few children say little yet.
            let own = u128::from(self.kept[place]) * children + CHILDREN * kept;
            let even = (u128::from(self.children[place]) + CHILDREN) * kept;
            let credit = (own * u128::from(EVEN) / even) as u64;
            *weight = MUTATIONS[place].weight * credit.clamp(MIN_CREDIT, MAX_CREDIT);
        }
        weights
    }

    /// A child was bred by these.
    pub fn child(&mut self, used: Used, kept: bool) {
        for place in used.iter() {
            self.children[place] += 1;
            self.kept[place] += KEPT * u64::from(kept);
        }
        self.bred += 1;
        if self.bred.is_multiple_of(HALF_LIFE) {
            self.children.iter_mut().chain(&mut self.kept).for_each(|count| *count /= 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::mutators::{Breeding, breed};
    use crate::images::entropy::Entropy;
    use crate::images::limits::Limits;
    use crate::programs::Program;
    use crate::programs::generate::{Wanted, generate};

    /// Children bred with one mutation only.
    fn used(place: usize) -> Used {
        let mut weights = Weights::default();
        weights[place] = 1;
        let mut entropy = Entropy::new(1);
        loop {
            let mut program = generate(1, Wanted { operations: 20, compressed: true });
            let breeding = Breeding {
                other: &Program::default(),
                weights: &weights,
                limits: Limits::WALKED,
                max_operations: 64,
                sound: true,
            };
            let used = breed(&mut program, &breeding, entropy.next_u64());
            if used.iter().eq([place]) {
                return used;
            }
        }
    }

    #[test]
    fn what_pays_is_chosen_more_often_and_forgotten_after_a_while() {
        let mut credit = Credit::default();
        let even = credit.weights();
        assert!(even.iter().zip(MUTATIONS).all(|(own, it)| *own == it.weight * EVEN));
        let (insert, delete) = (used(0), used(1));
        for at in 0..4000 {
            credit.child(insert, at % 10 == 0);
            credit.child(delete, false);
        }
        let paid = credit.weights();
        assert!(paid[0] > even[0] && paid[1] < even[1], "{paid:?}");
        assert!(paid[1] >= even[1] / 4 && paid[0] <= even[0] * 4, "{paid:?}");
        (0..20 * HALF_LIFE).for_each(|_| credit.child(delete, false));
        assert!(credit.weights()[0] < paid[0], "{:?}", credit.weights());
    }
}
