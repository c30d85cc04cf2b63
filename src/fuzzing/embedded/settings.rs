//! The settings of a campaign.

use crate::harness::cases::target::Inputs;
use crate::harness::engine::claims::Claims;
use crate::images::limits::Limits;

/// The settings of a campaign, which do not change while it runs.
#[derive(Clone, Debug)]
pub struct FuzzSettings {
    /// The seed of all random choices.
    pub rng_seed: u64,
    /// The kind of the target's inputs.
    pub inputs: Inputs,
    /// The limits of the target.
    pub limits: Limits,
    /// The claims of the engine under test: inputs are folded into the features that it knows.
    pub claims: Claims,
    /// The highest number of operations of a child.
    pub max_operations: usize,
    /// The name of the code that is fuzzed. In the same build, the same input has the same coverage.
    pub build: String,
}
