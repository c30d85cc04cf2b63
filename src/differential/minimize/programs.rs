//! Minimizes the program of a disk that a program builds.

use std::convert::Infallible;
use std::ops::ControlFlow;

use super::search::{MAX_RECIPES, RecipeSearch, command, command_mut, each_command};
use crate::findings::minimizer::{self, MinimizeSettings};
use crate::harness::cases::target::Inputs;
use crate::images::limits::Limits;
use crate::recipes::recipe::Command;

/// Minimizes programs.
pub(super) fn reduce(search: &mut RecipeSearch<'_>) {
    each_command(search, |search, step, at| {
        let Some(Command::Program { input, .. }) = command(search.recipe(), step, at) else {
            return;
        };
        let Ok(input) = hex::decode(input) else { return };
        let mut judge = |candidate: &[u8]| -> Result<bool, Infallible> {
            let mut recipe = search.recipe().clone();
            if let Some(Command::Program { input, .. }) = command_mut(&mut recipe, step, at) {
                *input = hex::encode(candidate);
            }
            Ok(search.keep(recipe))
        };
        // The search keeps the smallest program itself.
        let Ok(_) = minimizer::minimize(
            &input,
            MinimizeSettings {
                inputs: Inputs::Programs,
                limits: Limits::HOSTILE,
                tries: MAX_RECIPES as u64,
                rerolls: 0,
                runs_here: true,
            },
            &mut judge,
            &mut |_| ControlFlow::Continue(()),
        );
    });
}
