//! Credit for mutations: the loop chooses a mutation more often for a while if children that it bred were kept.

use serde::{Deserialize, Serialize};

use crate::fuzzing::mutators::{MUTATIONS, Used, Weights};
use crate::harness::cases::target::Inputs;

/// The number of children after which all earlier counts are halved.
const HALF_LIFE: u64 = 1 << 13;
/// The count that one kept child adds. It is high because few children are kept, and halving must not erase them.
const KEPT: u64 = 1 << 10;
/// The credit that leaves a weight as it is. Credit changes a weight at most to a quarter or to four times its value.
const EVEN: u64 = 64;
const MIN_CREDIT: u64 = EVEN / 4;
const MAX_CREDIT: u64 = EVEN * 4;
/// The number of children that each mutation is assumed to have had before the first, with the average share kept.
const CHILDREN: u128 = 1 << 8;

/// The number of children that each mutation helped to breed, and the number of those that were kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credit {
    bred: u64,
    children: Weights,
    kept: Weights,
}

/// The worth of a mutation, for people and scripts.
#[derive(Debug, Serialize)]
pub struct MutationWorth {
    /// The name.
    pub mutation: &'static str,
    /// The share of all choices of a mutation that fall on this one, in percent.
    pub chosen_percent: f64,
    /// The number of children that it helped to breed. Older children count less.
    pub children: u64,
    /// The number of those that were kept. Older ones count less, so this has a fraction.
    pub kept: f64,
    /// The factor by which its children change its weight, from 0.25 to 4.
    pub credit: f64,
}

impl Credit {
    /// Returns the present weight of each mutation.
    pub fn weights(&self) -> Weights {
        let all = |counts: &Weights| u128::from(counts.iter().sum::<u64>());
        let (children, kept) = (all(&self.children) + CHILDREN, all(&self.kept) + u128::from(KEPT));
        let mut weights = Weights::default();
        for (place, weight) in weights.iter_mut().enumerate() {
            // The share of this mutation's children that were kept, divided by the share of all children that were.
            // The assumed children keep the quotient near 1 while a mutation has few of its own.
            let own = u128::from(self.kept[place]) * children + CHILDREN * kept;
            let even = (u128::from(self.children[place]) + CHILDREN) * kept;
            let credit = (own * u128::from(EVEN) / even) as u64;
            *weight = MUTATIONS[place].weight * credit.clamp(MIN_CREDIT, MAX_CREDIT);
        }
        weights
    }

    /// Returns the worth of each mutation of these inputs, the one that is worth most first.
    pub fn worth(&self, inputs: Inputs) -> Vec<MutationWorth> {
        let weights = self.weights();
        let of_inputs = |place: &(usize, u64)| MUTATIONS[place.0].changes(inputs);
        let all: u64 = weights.into_iter().enumerate().filter(of_inputs).map(|(_, it)| it).sum();
        let worth = |(place, weight): (usize, u64)| MutationWorth {
            mutation: MUTATIONS[place].name,
            chosen_percent: 100.0 * weight as f64 / all as f64,
            children: self.children[place],
            kept: self.kept[place] as f64 / KEPT as f64,
            credit: weight as f64 / (MUTATIONS[place].weight * EVEN) as f64,
        };
        let mut mutations: Vec<_> =
            weights.into_iter().enumerate().filter(of_inputs).map(worth).collect();
        mutations.sort_by(|one, other| other.credit.total_cmp(&one.credit));
        mutations
    }

    /// Counts a child that the mutations `used` bred, and whether it was kept.
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
    use crate::programs::generate::{GenerateSettings, generate};

    /// Returns the record of a child that only the mutation at `place` has bred.
    fn used(place: usize) -> Used {
        let mut weights = Weights::default();
        weights[place] = 1;
        let mut entropy = Entropy::new(1);
        loop {
            let mut program = generate(1, GenerateSettings { operations: 20, compressed: true });
            let breeding = Breeding {
                other: &Program::default(),
                weights: &weights,
                limits: Limits::WALKED,
                max_operations: 64,
                sound: true,
            };
            let used = breed(&mut program, &breeding, &mut || None, entropy.next_u64());
            if used.iter().eq([place]) {
                return used;
            }
        }
    }

    #[test]
    fn mutations_whose_children_are_kept_gain_weight_and_lose_it_later() {
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
