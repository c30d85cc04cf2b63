//! Makes a recipe that shows a divergence as short and as simple as it can be, so that a person can read it.
//!
//! Each reducer proposes simpler recipes. A proposal with the same fingerprint replaces the current recipe. Reducers
//! run in turn until none of them makes progress, or until the budget of runs is spent.

mod layers;
mod search;

use std::convert::Infallible;
use std::ops::ControlFlow;

use crate::findings::minimizer::{self, MinimizeSettings};
use crate::harness::cases::target::Inputs;
use crate::images::limits::Limits;
use crate::recipes::recipe::{Command, DiskQuestion, Recipe};
use search::{
    CommandPlace, MAX_RECIPES, RecipeSearch, command, command_mut, requests_mut, words_mut,
};

pub use search::{MinimizedRecipe, Tries};

/// A way to make recipes simpler.
type RecipeReducer = fn(&mut RecipeSearch<'_>);

/// All reducers, in the order in which they run: those that remove most come first.
const RECIPE_REDUCERS: [RecipeReducer; 7] =
    [steps, layers::reduce, commands, requests, words, numbers, programs];

/// Minimizes a recipe that showed a divergence.
pub fn minimize(as_found: MinimizedRecipe, tries: Tries<'_>) -> MinimizedRecipe {
    let mut search = RecipeSearch { best: as_found, tries };
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

/// Drops the steps after the divergence, and all questions except the one that showed it. Then asks this question about
/// the whole disk instead of a window.
fn only_the_question(search: &mut RecipeSearch<'_>) {
    let (at, question) = (search.best.met.step, search.best.met.question.clone());
    let mut recipe = search.recipe().clone();
    recipe.steps.truncate(at.saturating_add(1));
    for (index, step) in recipe.steps.iter_mut().enumerate() {
        step.questions.clear();
        step.questions.extend(question.iter().filter(|_| index == at).cloned());
    }
    search.keep(recipe);
    let mut recipe = search.recipe().clone();
    for question in recipe.steps.iter_mut().flat_map(|step| &mut step.questions) {
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
        search.drop_pieces(1, |recipe| Some(&mut recipe.steps.get_mut(step)?.commands));
    }
}

/// Drops requests of qemu-io: halves first, then single ones.
fn requests(search: &mut RecipeSearch<'_>) {
    search.each_command(|search, command, place| {
        if let Command::QemuIo { requests, .. } = command {
            let longest = requests.len().div_ceil(2);
            search.drop_pieces(longest, |recipe| requests_mut(recipe, place));
        }
    });
}

/// The values that are tried before a number is halved.
const PLAIN: [u64; 8] = [0, 1, 512, 4096, 65_536, 1 << 20, 2 << 20, 4 << 20];

/// Makes numbers smaller.
fn numbers(search: &mut RecipeSearch<'_>) {
    search.each_command(|search, command, place| match command {
        // The size is the last word of `create` and `resize`.
        Command::QemuImg(words) => {
            let word = words.len().saturating_sub(1);
            smaller(search, |recipe| words_mut(recipe, place)?.get_mut(word), 0, true);
        }
        // The offset and the length end a request.
        Command::QemuIo { requests, .. } => {
            for (request, from_end) in (0..requests.len()).flat_map(|at| [(at, 0), (at, 1)]) {
                smaller(
                    search,
                    |recipe| requests_mut(recipe, place)?.get_mut(request),
                    from_end,
                    false,
                );
            }
        }
        _ => {}
    });
}

/// Replaces a number in a text by a smaller one that still shows the divergence. The number is the word at index
/// `from_end`, counted from the last word. Tries plain values first and then, if `has_halves` is true, halves of the
/// number.
fn smaller(
    search: &mut RecipeSearch<'_>,
    find: impl Fn(&mut Recipe) -> Option<&mut String>,
    from_end: usize,
    has_halves: bool,
) {
    let mut current = search.recipe().clone();
    let number_in = |text: &mut String| text.rsplit(' ').nth(from_end)?.parse::<u64>().ok();
    let Some(number) = find(&mut current).and_then(number_in) else { return };
    let halves = std::iter::successors(Some(number / 2), |half| (*half > 0).then_some(half / 2));
    let halves = halves.filter(|_| has_halves);
    for value in PLAIN.into_iter().chain(halves).filter(|value| *value < number) {
        let put = |text: &mut String| {
            let mut words: Vec<String> = text.split(' ').map(str::to_string).collect();
            let index = words.len().saturating_sub(from_end.saturating_add(1));
            words.get_mut(index).into_iter().for_each(|word| *word = value.to_string());
            *text = words.join(" ");
        };
        if search.keep_changed(&find, put) {
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
    search.each_command(|search, command, place| {
        if let Command::QemuImg(words) = command {
            (1..words.len()).rev().for_each(|word| drop_option(search, place, word));
        }
    });
}

/// Drops the option at index `word`, or one part of its value after the other.
fn drop_option(search: &mut RecipeSearch<'_>, place: CommandPlace, word: usize) {
    let Some(Command::QemuImg(words)) = command(search.recipe(), place) else { return };
    let Some(option) = words.get(word) else { return };
    let count = match option.as_str() {
        option if WITH_VALUE.contains(&option) => 2,
        option if ALONE.contains(&option) || option.starts_with("--preallocation") => 1,
        _ => return,
    };
    let value = word.saturating_add(1);
    let values = words.get(value).cloned().unwrap_or_default();
    let end = word.saturating_add(count).min(words.len());
    let is_dropped = search
        .keep_changed(|recipe| words_mut(recipe, place), |words| drop(words.drain(word..end)));
    if is_dropped || count == 1 {
        return;
    }
    let mut parts: Vec<&str> = values.split(',').collect();
    for part in (0..parts.len()).rev() {
        let removed = parts.remove(part);
        let is_dropped = !parts.is_empty()
            && search.keep_changed(
                |recipe| words_mut(recipe, place)?.get_mut(value),
                |value| *value = parts.join(","),
            );
        if !is_dropped {
            parts.insert(part, removed);
        }
    }
}

/// Minimizes programs.
fn programs(search: &mut RecipeSearch<'_>) {
    search.each_command(|search, command, place| {
        let Command::Program { input, .. } = command else { return };
        let Ok(input) = hex::decode(input) else { return };
        let mut judge = |candidate: &[u8]| -> Result<bool, Infallible> {
            Ok(search.keep_changed(
                |recipe| match command_mut(recipe, place)? {
                    Command::Program { input, .. } => Some(input),
                    _ => None,
                },
                |input| *input = hex::encode(candidate),
            ))
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
