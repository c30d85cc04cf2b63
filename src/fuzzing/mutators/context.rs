//! The context of a mutation: random numbers, the limits of the target, another program.

use crate::harness::cases::tracer::TraceRun;
use crate::images::entropy::Entropy;
use crate::images::limits::Limits;
use crate::programs::Program;

/// The parameters of a mutation, except the program.
pub(super) struct MutationContext<'c> {
    pub(super) entropy: Entropy,
    pub(super) limits: Limits,
    /// The highest number of operations of a program.
    pub(super) most: usize,
    /// Another program.
    pub(super) other: Option<&'c Program>,
    /// The program is unchanged since a run that found nothing, so a mutation may run it.
    pub(super) sound: bool,
    /// Runs that program again with the engine under test.
    pub(super) trace: &'c mut TraceRun<'c>,
}

impl MutationContext<'_> {
    /// Returns a random index into a list of `length` elements, which must not be 0.
    pub(super) fn index(&mut self, length: usize) -> usize {
        self.entropy.below(length as u64) as usize
    }

    /// Returns a random range of one to `most` indices into a list of `length` elements, which must not be 0.
    pub(super) fn range(&mut self, length: usize, most: usize) -> std::ops::Range<usize> {
        let first = self.index(length);
        let count = 1 + self.index(most.min(length - first));
        first..first + count
    }

    /// Returns the number of operations that may still be added.
    pub(super) fn room(&self, program: &Program) -> usize {
        self.most.saturating_sub(program.operations.len())
    }
}

#[cfg(test)]
impl<'c> MutationContext<'c> {
    /// Creates the context of a mutation of a program that no engine runs again.
    pub(super) fn untraced(
        entropy: Entropy,
        limits: Limits,
        most: usize,
        other: Option<&'c Program>,
    ) -> Self {
        // Leaks nothing: the closure holds no data.
        let trace = Box::leak(Box::new(|| None));
        Self { entropy, limits, most, other, sound: true, trace }
    }
}
