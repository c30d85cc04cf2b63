//! The reason why a command failed, as a class. Two programs word their errors differently, so the campaign compares
//! the classes of their messages.
//!
//! [`class_of`] searches tables of phrases for the ones that a program prints. It does not check whether the reason is
//! true, and does not compare offsets or values. If the name of a file contains one of the phrases, the class may be
//! wrong. A message without a class is a finding of its own. The programs must print the texts of system errors in
//! English (`LC_ALL=C`).

mod class;
mod family;
mod named;
mod ours;
mod qemu;
mod search;

#[cfg(test)]
mod tests;

pub use class::ReasonClass;
pub use family::MessageFamily;
pub use named::{Comparison, NamedPair, PAIRS, compare};
pub use search::{class_of, family_of};
