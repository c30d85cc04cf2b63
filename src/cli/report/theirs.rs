//! The answer of qemu-img, for the page.

use crate::cli::account::Account;
use crate::cli::qemu;
use crate::cli::runner::Target;

/// What qemu-img has to say of the disk.
pub struct Theirs {
    /// Which one there is.
    pub version: Option<String>,
    /// Its extents, or in words why there are none.
    pub answer: Result<qemu::Map, String>,
}

impl Theirs {
    pub fn of(account: &Account, target: Target) -> Self {
        let answer = qemu::asked(account, target);
        Self { version: answer.is_ok().then(qemu::version).flatten(), answer }
    }
}
