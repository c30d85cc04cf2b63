//! The simplest recipe so far, and the tries that may replace it.

use std::path::Path;
use std::time::Instant;

use crate::base::error::Error;
use crate::differential::iteration::{Met, RecipeRunner};
use crate::differential::sides::Sides;
use crate::differential::workdir::emptied;
use crate::harness::KnownFindings;
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
    pub fn met(&self, recipe: &Recipe) -> Result<Option<Met>, Error> {
        emptied(self.folder)?;
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

/// The indices of a step and of one of its commands.
pub(super) type CommandPlace = (usize, usize);

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

    /// Tries the recipe in which `change` has changed something that `find` finds.
    pub fn keep_changed<T>(
        &mut self,
        find: impl Fn(&mut Recipe) -> Option<&mut T>,
        change: impl FnOnce(&mut T),
    ) -> bool {
        let mut recipe = self.recipe().clone();
        find(&mut recipe).map(change);
        self.keep(recipe)
    }

    /// Drops elements of the list that `find` finds, from the last one: pieces of `longest` elements first, then
    /// shorter ones.
    pub fn drop_pieces<T>(
        &mut self,
        longest: usize,
        find: impl Fn(&mut Recipe) -> Option<&mut Vec<T>>,
    ) {
        let mut length = longest;
        while length > 0 {
            let mut end = usize::MAX;
            loop {
                let mut recipe = self.recipe().clone();
                let Some(list) = find(&mut recipe) else { return };
                end = end.min(list.len());
                let start = end.saturating_sub(length);
                if start == end {
                    break;
                }
                list.drain(start..end);
                self.keep(recipe);
                end = start;
            }
            length /= 2;
        }
    }

    /// Calls `reduce` with each command and its place.
    pub fn each_command(&mut self, reduce: impl Fn(&mut Self, &Command, CommandPlace)) {
        for step in 0..self.recipe().steps.len() {
            let count = self.recipe().steps.get(step).map_or(0, |step| step.commands.len());
            for at in 0..count {
                if let Some(command) = command(self.recipe(), (step, at)).cloned() {
                    reduce(self, &command, (step, at));
                }
            }
        }
    }
}

pub(super) fn command(recipe: &Recipe, (step, at): CommandPlace) -> Option<&Command> {
    recipe.steps.get(step)?.commands.get(at)
}

pub(super) fn command_mut(recipe: &mut Recipe, (step, at): CommandPlace) -> Option<&mut Command> {
    recipe.steps.get_mut(step)?.commands.get_mut(at)
}

/// Returns the words of a command of qemu-img.
pub(super) fn words_mut(recipe: &mut Recipe, place: CommandPlace) -> Option<&mut Vec<String>> {
    match command_mut(recipe, place)? {
        Command::QemuImg(words) => Some(words),
        _ => None,
    }
}

/// Returns the requests of a command of qemu-io.
pub(super) fn requests_mut(recipe: &mut Recipe, place: CommandPlace) -> Option<&mut Vec<String>> {
    match command_mut(recipe, place)? {
        Command::QemuIo { requests, .. } => Some(requests),
        _ => None,
    }
}
