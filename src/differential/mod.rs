//! The differential campaign. QEMU makes and changes disk images, QEMU and the program under test answer the same
//! questions about each of them, and every difference is a divergence.

pub mod campaign;
mod claims;
mod compare;
pub mod cpu;
pub mod distribution;
pub mod divergence;
mod draw;
mod guest;
mod issue;
pub mod iteration;
pub mod known_issues;
pub mod minimize;
mod names;
pub mod page;
mod pattern;
mod perform;
pub mod quirks;
pub mod reason;
pub mod recipe;
pub mod recording;
pub mod reports;
pub mod sides;
mod stamps;
pub mod summary;
pub mod workdir;

/// Returns the recipe of an iteration.
pub fn recipe_of(rng_seed: u64, iteration: u64) -> recipe::Recipe {
    draw::recipe(rng_seed, iteration)
}
