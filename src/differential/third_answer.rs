//! Compares an answer on which both sides agree with the bytes that a guest must read, by the commands of the recipe.

mod data;
mod zeros;

pub(super) use data::compare;
pub(super) use zeros::compare_zeros;

#[cfg(test)]
mod tests;
