//! The simplest recipe so far, and the tries that may replace it.

use std::path::Path;
use std::time::Instant;

use crate::differential::iteration::{Met, RecipeRunner};
use crate::differential::sides::Sides;
use crate::harness::KnownFindings;
use crate::recipes::RecipeError;
use crate::recipes::recipe::{Command, Recipe};

/// The maximum number of recipes that are tried for a divergence.
pub(super) const MAX_RECIPES: usize = 600;

/// The things that trying a recipe needs.
#[derive(Clone, Copy)]
pub struct Tries<'t> {
    /// The programs.
    pub sides: &'t Sides,
    /// The divergences that are known.
    pub known: &'t KnownFindings,
    /// A folder that each try may empty.
    pub folder: &'t Path,
    /// The moment at which the search ends with the best recipe so far.
    pub deadline: Option<Instant>,
}

impl Tries<'_> {
    /// Carries out a recipe in an empty folder, and returns its divergence.
    ///
    /// # Errors
    /// The folder cannot be emptied.
    pub fn met(&self, recipe: &Recipe) -> Result<Option<Met>, RecipeError> {
        let emptied = std::fs::remove_dir_all(self.folder);
        let made = match emptied {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => std::fs::create_dir_all(self.folder),
        };
        made.map_err(|error| RecipeError::File { path: self.folder.to_path_buf(), error })?;
        let Self { sides, known, folder, .. } = *self;
        Ok(RecipeRunner { sides, known, folder }.run(recipe).met)
    }
}

/// A divergence, with the recipe that shows it.
#[derive(Clone, Debug)]
pub struct MinimizedRecipe {
    /// The recipe.
    pub recipe: Recipe,
    /// The divergence of this recipe.
    pub met: Met,
    /// The number of recipes that were tried.
    pub tries: usize,
    /// The search has ended.
    pub is_minimized: bool,
}

impl MinimizedRecipe {
    /// Returns the recipe as the campaign found it.
    pub fn as_found(recipe: &Recipe, met: Met) -> Self {
        Self { recipe: recipe.clone(), met, tries: 0, is_minimized: false }
    }
}

/// The state of a minimization.
pub(super) struct RecipeSearch<'s> {
    pub best: MinimizedRecipe,
    pub tries: Tries<'s>,
}

impl RecipeSearch<'_> {
    pub fn recipe(&self) -> &Recipe {
        &self.best.recipe
    }

    pub fn is_spent(&self) -> bool {
        let is_late = self.tries.deadline.is_some_and(|at| Instant::now() >= at);
        is_late || self.best.tries >= MAX_RECIPES
    }

    /// Tries a recipe. Keeps it, and returns true, if it has the same fingerprint.
    pub fn keep(&mut self, recipe: Recipe) -> bool {
        if recipe == self.best.recipe {
            return true;
        }
        if self.is_spent() {
            return false;
        }
        self.best.tries += 1;
        // A recipe that cannot be carried out shows nothing.
        match self.tries.met(&recipe) {
            Ok(Some(met)) if met.fingerprint == self.best.met.fingerprint => {
                self.best.recipe = recipe;
                self.best.met = met;
                true
            }
            _ => false,
        }
    }
}

/// Calls `reduce` with the indices of each command.
pub(super) fn each_command(
    search: &mut RecipeSearch<'_>,
    reduce: impl Fn(&mut RecipeSearch<'_>, usize, usize),
) {
    for step in 0..search.recipe().steps.len() {
        let count = search.recipe().steps.get(step).map_or(0, |step| step.commands.len());
        for at in 0..count {
            reduce(search, step, at);
        }
    }
}

pub(super) fn command(recipe: &Recipe, step: usize, at: usize) -> Option<&Command> {
    recipe.steps.get(step)?.commands.get(at)
}

pub(super) fn command_mut(recipe: &mut Recipe, step: usize, at: usize) -> Option<&mut Command> {
    recipe.steps.get_mut(step)?.commands.get_mut(at)
}
