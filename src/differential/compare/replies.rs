//! The answers that are compared.

use std::path::Path;

use super::versions::version_of;
use crate::differential::sides::{Sides, Tested};
use crate::processes::Reply;

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

impl<'a> Replies<'a> {
    /// Returns the answers of both sides.
    pub fn new(sides: &Sides, qemu: &'a Reply, tested: &'a Reply) -> Self {
        let version = version_of(&sides.qemu.version);
        let has_known_messages = matches!(sides.tested, Tested::Ours(_));
        Self { qemu, tested, version, has_known_messages }
    }
}

/// The raw files that both sides wrote, for `DiskQuestion::Read`.
#[derive(Clone, Copy, Debug)]
pub struct RawFiles<'a> {
    /// QEMU's file.
    pub qemu: &'a Path,
    /// The file of the program under test.
    pub tested: &'a Path,
}
