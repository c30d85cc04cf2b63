//! Makes a recipe that shows a divergence as short and as simple as it can be, so that a person can read it.
//!
//! Each reducer proposes simpler recipes. A proposal with the same fingerprint replaces the current recipe. Reducers
//! run in turn until none of them makes progress, or until the budget of runs is spent.

mod layers;
mod search;

use std::convert::Infallible;
use std::ops::ControlFlow;

use super::iteration::Met;
use crate::findings::minimizer::{self, MinimizeSettings};
use crate::harness::cases::target::Inputs;
use crate::images::limits::Limits;
use crate::recipes::recipe::{Command, DiskQuestion, Recipe};
use search::{MAX_RECIPES, RecipeSearch, command, command_mut, each_command};

pub use search::{MinimizedRecipe, Tries};

/// A way to make recipes simpler.
type RecipeReducer = fn(&mut RecipeSearch<'_>);

/// All reducers, in the order in which they run: those that remove most come first.
const RECIPE_REDUCERS: [RecipeReducer; 7] =
    [steps, layers::reduce, commands, requests, words, numbers, programs];

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

/// The values that are tried before a number is halved.
const PLAIN: [u64; 8] = [0, 1, 512, 4096, 65_536, 1 << 20, 2 << 20, 4 << 20];

/// Makes numbers smaller.
fn numbers(search: &mut RecipeSearch<'_>) {
    each_command(search, |search, step, at| match command(search.recipe(), step, at) {
        // The size is the last word of `create` and `resize`.
        Some(Command::QemuImg(words)) => {
            let word = words.len().saturating_sub(1);
            smaller(search, |recipe| match command_mut(recipe, step, at) {
                Some(Command::QemuImg(words)) => words.get_mut(word),
                _ => None,
            });
        }
        Some(Command::QemuIo { requests, .. }) => {
            for request in 0..requests.len() {
                // The offset and the length end a request.
                for from_end in [0, 1] {
                    smaller_in_request(search, (step, at, request), from_end);
                }
            }
        }
        _ => {}
    });
}

/// Makes the number in a word smaller, as long as the divergence stays.
fn smaller(search: &mut RecipeSearch<'_>, word: impl Fn(&mut Recipe) -> Option<&mut String>) {
    let mut current = search.recipe().clone();
    let Some(number) = word(&mut current).and_then(|word| word.parse::<u64>().ok()) else { return };
    let halves = std::iter::successors(Some(number / 2), |half| (*half > 0).then_some(half / 2));
    for value in PLAIN.into_iter().chain(halves).filter(|value| *value < number) {
        let mut recipe = search.recipe().clone();
        if let Some(word) = word(&mut recipe) {
            *word = value.to_string();
        }
        if search.keep(recipe) {
            return;
        }
    }
}

fn smaller_in_request(
    search: &mut RecipeSearch<'_>,
    place: (usize, usize, usize),
    from_end: usize,
) {
    let (step, at, request) = place;
    let number_of = |recipe: &Recipe| {
        let Some(Command::QemuIo { requests, .. }) = command(recipe, step, at) else { return None };
        let word = requests.get(request)?.rsplit(' ').nth(from_end)?;
        word.parse::<u64>().ok()
    };
    let Some(number) = number_of(search.recipe()) else { return };
    for value in PLAIN.into_iter().filter(|value| *value < number) {
        let mut recipe = search.recipe().clone();
        let Some(Command::QemuIo { requests, .. }) = command_mut(&mut recipe, step, at) else {
            return;
        };
        let Some(text) = requests.get_mut(request) else { return };
        let mut words: Vec<String> = text.split(' ').map(str::to_string).collect();
        let index = words.len().saturating_sub(from_end.saturating_add(1));
        if let Some(word) = words.get_mut(index) {
            *word = value.to_string();
        }
        *text = words.join(" ");
        if search.keep(recipe) {
            return;
        }
    }
}

/// The options that take a value, which goes with them.
const WITH_VALUE: [&str; 6] = ["-o", "-S", "-t", "-l", "-g", "-p"];
/// The options that stand alone.
const ALONE: [&str; 4] = ["-c", "-n", "-u", "-d"];

/// Drops options.
fn words(search: &mut RecipeSearch<'_>) {
    each_command(search, |search, step, at| {
        let Some(Command::QemuImg(words)) = command(search.recipe(), step, at) else { return };
        for word in (1..words.len()).rev() {
            drop_option(search, step, at, word);
        }
    });
}

/// Drops the option at index `word`, or one part of its value after the other.
fn drop_option(search: &mut RecipeSearch<'_>, step: usize, at: usize, word: usize) {
    let Some(Command::QemuImg(words)) = command(search.recipe(), step, at) else { return };
    let Some(option) = words.get(word) else { return };
    let count = match option.as_str() {
        option if WITH_VALUE.contains(&option) => 2,
        option if ALONE.contains(&option) || option.starts_with("--preallocation") => 1,
        _ => return,
    };
    let values = words.get(word.saturating_add(1)).cloned().unwrap_or_default();
    let mut recipe = search.recipe().clone();
    let end = word.saturating_add(count).min(words.len());
    if let Some(Command::QemuImg(words)) = command_mut(&mut recipe, step, at) {
        words.drain(word..end);
    }
    if search.keep(recipe) || count == 1 {
        return;
    }
    let mut parts: Vec<&str> = values.split(',').collect();
    for part in (0..parts.len()).rev() {
        let removed = parts.remove(part);
        let mut recipe = search.recipe().clone();
        if let Some(Command::QemuImg(words)) = command_mut(&mut recipe, step, at)
            && let Some(value) = words.get_mut(word.saturating_add(1))
        {
            *value = parts.join(",");
        }
        if parts.is_empty() || !search.keep(recipe) {
            parts.insert(part, removed);
        }
    }
}

/// Minimizes programs.
fn programs(search: &mut RecipeSearch<'_>) {
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
