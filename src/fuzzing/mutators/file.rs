//! Mutations of files of any content, one per file. Except for `sniper`, they know no format, as libFuzzer's own
//! mutations.

pub(super) mod bytes;
pub(super) mod length;
pub(super) mod mix;
pub(super) mod range;
pub(super) mod sniper;
pub(super) mod word;
