//! Makes numbers smaller: sizes of disks, offsets and lengths of requests.

use super::search::{RecipeSearch, command, command_mut, each_command};
use crate::recipes::recipe::{Command, Recipe};

/// The values that are tried before a number is halved.
const PLAIN: [u64; 8] = [0, 1, 512, 4096, 65_536, 1 << 20, 2 << 20, 4 << 20];

/// Makes numbers smaller.
pub(super) fn reduce(search: &mut RecipeSearch<'_>) {
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
