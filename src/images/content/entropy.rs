//! Pseudo-random numbers that never change. The meaning of programs depends on them, so the generator is part of the
//! format. It is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).

/// A stream of numbers that its seed alone determines.
#[derive(Clone, Debug, Default)]
pub struct Entropy {
    state: u64,
}

impl Entropy {
    /// Creates the stream of `rng_seed`.
    pub const fn new(rng_seed: u64) -> Self {
        Self { state: rng_seed }
    }

    /// Returns the state: a stream with this seed continues from here.
    pub const fn state(&self) -> u64 {
        self.state
    }

    /// Returns the next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0. Small numbers are slightly likelier if `bound` is not a
    /// power of two.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.next_u64()) * u128::from(bound);
        (product >> 64) as u64
    }

    /// Returns the index of one of `weights`, with a probability in proportion to its weight, or `None` if all are 0.
    pub fn weighted(&mut self, weights: impl Iterator<Item = u64> + Clone) -> Option<usize> {
        let mut left = self.below(weights.clone().sum());
        let mut weights = weights;
        weights.position(|weight| {
            let here = left < weight;
            left = left.saturating_sub(weight);
            here
        })
    }

    /// Returns true once in `times` draws on average.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence() {
        let mut entropy = Entropy::new(1_234_567);
        assert_eq!(entropy.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(entropy.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn below_stays_below() {
        let mut entropy = Entropy::new(0);
        assert_eq!(entropy.below(0), 0);
        assert!((0..1000).all(|_| entropy.below(7) < 7));
    }
}
