//! Inputs as files: their names, folders to which fuzzers add inputs, the coverage of a folder, and merges of folders.

mod folder;
#[cfg(feature = "cli")]
pub(crate) mod inputs;
#[cfg(feature = "cli")]
pub(crate) mod merge;

pub use folder::{Folder, is_find, is_torn, name};
