//! Guesses of where look-ups in an image end.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Guesses for look-ups. Readers read the same table entries again and again.
#[derive(Debug)]
pub(super) struct Guesses([AtomicU32; Guesses::SLOTS]);

impl Guesses {
    const SLOTS: usize = 256;

    /// Returns the guess for `offset`. Offsets within 64 bytes share one.
    #[inline]
    pub(super) fn slot(&self, offset: u64) -> &AtomicU32 {
        // Fibonacci hashing; the upper eight bits are below SLOTS.
        &self.0[((offset >> 6).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize]
    }
}

impl Default for Guesses {
    fn default() -> Self {
        Self([const { AtomicU32::new(0) }; Self::SLOTS])
    }
}

impl Clone for Guesses {
    fn clone(&self) -> Self {
        let guesses = self.0.each_ref().map(|guess| AtomicU32::new(guess.load(Relaxed)));
        Self(guesses)
    }
}
