//! Makes a recipe that shows a divergence as short and as simple as it can be, so that a person can read it.
//!
//! Each reducer proposes simpler recipes. A proposal with the same fingerprint replaces the current recipe. Reducers
//! run in turn until none of them makes progress, or until the budget of runs is spent.

mod layers;
mod numbers;
mod programs;
mod search;
mod words;

pub use search::{MinimizedRecipe, Tries};
use search::{RecipeSearch, command, command_mut, each_command};

use super::iteration::Met;
use crate::recipes::recipe::{Command, DiskQuestion, Recipe};

/// A way to make recipes simpler.
type RecipeReducer = fn(&mut RecipeSearch<'_>);

/// All reducers, in the order in which they run: those that remove most come first.
const RECIPE_REDUCERS: [RecipeReducer; 7] =
    [steps, layers::reduce, commands, requests, words::reduce, numbers::reduce, programs::reduce];

/// Minimizes a recipe that showed a divergence.
pub fn minimize(recipe: &Recipe, met: Met, tries: Tries<'_>) -> MinimizedRecipe {
    let best = MinimizedRecipe::as_found(recipe, met);
    let mut search = RecipeSearch { best, tries };
    only_the_question(&mut search);
    loop {
        let before = search.best.recipe.clone();
        for reducer in RECIPE_REDUCERS {
            reducer(&mut search);
        }
        if search.best.recipe == before || search.is_spent() {
            search.best.is_minimized = true;
            return search.best;
        }
    }
}

/// Drops the steps behind the divergence, and all questions but the one that showed it.
fn only_the_question(search: &mut RecipeSearch<'_>) {
    let (at, question) = (search.best.met.step, search.best.met.question.clone());
    let mut recipe = search.recipe().clone();
    recipe.steps.truncate(at.saturating_add(1));
    for (index, step) in recipe.steps.iter_mut().enumerate() {
        step.questions.clear();
        step.questions.extend(question.iter().filter(|_| index == at).cloned());
    }
    search.keep(recipe);
    whole_disk(search);
}

/// Asks about the whole disk instead of a window.
fn whole_disk(search: &mut RecipeSearch<'_>) {
    let mut recipe = search.recipe().clone();
    let asked = recipe.steps.iter_mut().flat_map(|step| &mut step.questions);
    for question in asked {
        if let DiskQuestion::Map { start, length } = question {
            (*start, *length) = (None, None);
        }
    }
    search.keep(recipe);
}

/// Drops one step after the other, from the last one.
fn steps(search: &mut RecipeSearch<'_>) {
    for at in (0..search.recipe().steps.len()).rev() {
        let mut recipe = search.recipe().clone();
        if at < recipe.steps.len() && recipe.steps.len() > 1 {
            let removed = recipe.steps.remove(at);
            // The question stays, and is about the disk of the step before.
            if let Some(last) = recipe.steps.last_mut()
                && last.questions.is_empty()
            {
                last.questions.extend(removed.questions);
            }
            search.keep(recipe);
        }
    }
}

/// Drops one command after the other, from the last one.
fn commands(search: &mut RecipeSearch<'_>) {
    for step in (0..search.recipe().steps.len()).rev() {
        let count = search.recipe().steps.get(step).map_or(0, |step| step.commands.len());
        for at in (0..count).rev() {
            let mut recipe = search.recipe().clone();
            if let Some(step) = recipe.steps.get_mut(step) {
                step.commands.remove(at);
            }
            search.keep(recipe);
        }
    }
}

/// Drops requests of qemu-io: halves first, then single ones.
fn requests(search: &mut RecipeSearch<'_>) {
    each_command(search, |search, step, at| {
        let Some(Command::QemuIo { requests, .. }) = command(search.recipe(), step, at) else {
            return;
        };
        let mut piece = requests.len().div_ceil(2);
        while piece > 0 {
            let mut end = usize::MAX;
            loop {
                let mut recipe = search.recipe().clone();
                let Some(Command::QemuIo { requests, .. }) = command_mut(&mut recipe, step, at)
                else {
                    return;
                };
                end = end.min(requests.len());
                let start = end.saturating_sub(piece);
                if start == end {
                    break;
                }
                requests.drain(start..end);
                search.keep(recipe);
                end = start;
            }
            piece /= 2;
        }
    });
}
