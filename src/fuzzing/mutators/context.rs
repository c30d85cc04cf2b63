//! The context of a mutation: random numbers, the limits of the target, another program.

use crate::images::entropy::Entropy;
use crate::images::limits::Limits;
use crate::programs::Program;

/// What a mutation knows beside the program.
pub(super) struct Context<'c> {
    pub(super) entropy: Entropy,
    pub(super) limits: Limits,
    /// How many operations a program may have.
    pub(super) most: usize,
    /// Another program.
    pub(super) other: Option<&'c Program>,
    /// The program was not changed yet, and what it was can be run without harm.
    pub(super) sound: bool,
}

impl Context<'_> {
    /// A place in a list of `length`, which is not empty.
    pub(super) fn index(&mut self, length: usize) -> usize {
        self.entropy.below(length as u64) as usize
    }

    /// A range of one to `most` places in a list of `length`, which is not empty.
    pub(super) fn range(&mut self, length: usize, most: usize) -> std::ops::Range<usize> {
        let first = self.index(length);
        let count = 1 + self.index(most.min(length - first));
        first..first + count
    }

    /// How many operations may still be added.
    pub(super) fn room(&self, program: &Program) -> usize {
        self.most.saturating_sub(program.operations.len())
    }
}
