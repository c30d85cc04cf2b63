//! Drops options of qemu-img, and options of formats.

use super::search::{RecipeSearch, command, command_mut, each_command};
use crate::recipes::recipe::Command;

/// The options that take a value, which goes with them.
const WITH_VALUE: [&str; 6] = ["-o", "-S", "-t", "-l", "-g", "-p"];
/// The options that stand alone.
const ALONE: [&str; 4] = ["-c", "-n", "-u", "-d"];

/// Drops options.
pub(super) fn reduce(search: &mut RecipeSearch<'_>) {
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
