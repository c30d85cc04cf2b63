//! `qemu-img check` of the files that an engine has written and closed.
//!
//! Does not check: leaks, which our recount judges; layers below; files so long that QEMU counts their clusters for
//! seconds.

use crate::harness::files::chain::Chain;
use crate::harness::oracles::{OracleResult, violation};
use crate::processes::ProcessEnd;

use super::failure::fail;
use super::files::ChainInMemory;
use super::findings::{ORACLE, ended};
use super::{answers, session};

/// Checks the image at the top of `chain`, which is in `files`.
pub(super) fn check(files: &ChainInMemory, chain: &Chain) -> OracleResult {
    let mut command = "qemu-img check 'json:".to_string();
    files.write_device(chain, &mut command);
    command.push_str("' 2>&1");
    let ran = session::run(&command, files.folder())
        .unwrap_or_else(|what| fail(&format!("qemu-img: {what}")));
    match ran.end.process {
        // 3 is the code of leaks.
        ProcessEnd::Exit(0 | 3) => Ok(()),
        ProcessEnd::Exit(1 | 2) => violation(ORACLE, "check", ("no errors", "errors"), || {
            answers::without_paths(ran.output.trim())
        }),
        _ => Err(ended(Box::new(ran)).attributed_to("qemu-img")),
    }
}
