//! Mutations of files of any content, one per file. They know no format, as libFuzzer's own mutations.

pub(super) mod bytes;
pub(super) mod length;
pub(super) mod mix;
pub(super) mod range;
pub(super) mod word;
