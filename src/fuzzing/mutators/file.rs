//! Mutations of files of any content.

pub(super) mod content;
pub(super) mod sniper;
pub(super) mod word;
