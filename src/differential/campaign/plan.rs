//! The task of a campaign, and the iterations that it selects.

use crate::base::features::FeatureSet;
use crate::differential::iteration::format_of;
use crate::differential::sides::Sides;
use crate::disk::image_format::ImageFormat;
use crate::harness::KnownFindings;
use crate::recipes::claims::features_of;
use crate::recipes::draw;
use crate::recipes::recipe::{DiskOperation, Recipe};

/// The maximum number of consecutive iterations that a plan skips. A plan that skips more matches no iteration.
pub(in crate::differential) const MAX_LEFT_OUT: u64 = 10_000;

/// The task of a campaign.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of all random numbers.
    pub rng_seed: u64,
    /// The first iteration.
    pub first: u64,
    /// The number of iterations.
    pub iterations: u64,
    /// The number of threads.
    pub jobs: usize,
    /// The formats that the disks of an iteration may have.
    pub formats: Vec<ImageFormat>,
    /// The operations that an iteration may have, beside the creation.
    pub operations: Vec<DiskOperation>,
    /// Features that the disks of an iteration may not have.
    pub lacks: FeatureSet,
    /// End at the first divergence.
    pub fail_fast: bool,
    /// The programs.
    pub sides: Sides,
    /// The divergences that are known.
    pub known: KnownFindings,
}

impl Plan {
    /// Returns the next iteration that the user wants, from `number` on, and its number.
    pub(in crate::differential) fn next(&self, number: u64) -> Option<(u64, Recipe)> {
        let numbers = number..number.saturating_add(MAX_LEFT_OUT);
        let drawn = |number| (number, draw::recipe(self.rng_seed, number));
        numbers.map(drawn).find(|(_, recipe)| self.wants(recipe))
    }

    /// Reports whether an iteration has only formats and operations that the user wants. The recipe of an iteration
    /// never depends on that wish: other iterations are skipped.
    fn wants(&self, recipe: &Recipe) -> bool {
        let has_all_claims = !self.lacks.meets(features_of(recipe));
        has_all_claims
            && recipe.steps.iter().all(|step| {
                let format = ImageFormat::named(format_of(&step.disk).as_bytes());
                let is_wanted = |operation| self.operations.contains(&operation);
                format.is_none_or(|format| self.formats.contains(&format))
                    && (step.operation == DiskOperation::Create || is_wanted(step.operation))
            })
    }
}

/// No iteration is as the user wants.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "none of the {MAX_LEFT_OUT} iterations from number {0} on matches --formats, --operations and --lacks, \
     expected a wider selection"
)]
pub struct NoIteration(pub u64);
