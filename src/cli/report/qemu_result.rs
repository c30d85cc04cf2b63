//! The answer of qemu-img, for the page.

use crate::cli::account::Account;
use crate::cli::qemu;
use qcowfuzz::harness::targets::TargetKind;

/// The answer of qemu-img about the disk.
pub struct QemuResult {
    /// The version of qemu-img.
    pub version: Option<String>,
    /// Its extents, or the reason why there are none.
    pub answer: Result<qemu::Map, String>,
}

impl QemuResult {
    pub fn of(account: &Account, target: TargetKind) -> Self {
        let answer = qemu::asked(account, target);
        Self { version: answer.is_ok().then(qemu::version).flatten(), answer }
    }
}
