//! The answers that are compared.

use std::path::Path;

use crate::differential::process::Reply;

/// The answers of both sides to a question.
#[derive(Clone, Copy, Debug)]
pub struct Replies<'a> {
    /// The answer of QEMU.
    pub qemu: &'a Reply,
    /// The answer of the program under test.
    pub tested: &'a Reply,
    /// The first two numbers of QEMU's version.
    pub version: (u32, u32),
    /// The program under test prints messages whose reasons have classes: ours does.
    pub has_known_messages: bool,
}

/// The raw files that both sides wrote, for `DiskQuestion::Read`.
#[derive(Clone, Copy, Debug)]
pub struct RawFiles<'a> {
    /// QEMU's file.
    pub qemu: &'a Path,
    /// The file of the program under test.
    pub tested: &'a Path,
}
