//! Recipes: commands of QEMU that make a disk image and change it, one after the other. A recipe is a source of images,
//! as a program is: the files are QEMU's, and the bytes that the commands write are what a guest must read.

pub mod claims;
pub mod draw;
mod error;
pub mod guest;
mod made_files;
pub mod names;
pub mod pattern;
pub mod perform;
mod program;
pub mod recipe;
pub mod tools;
pub mod workshop;

pub use error::{RecipeError, without_numbers};
