//! The whole command of qcowfuzz, with QEMU under test: a long-running qemu-io.

use qcowfuzz::harness::against::qemu_io::QemuEngine;
use qcowfuzz::harness::{Implementation, KnownFindings};

/// QEMU with its known findings.
fn qemu() -> Implementation {
    let known = KnownFindings::parse(include_str!("../../findings/qemu.toml"));
    Implementation::from(QemuEngine::default())
        .knowing(known.unwrap_or_else(|error| panic!("known findings: {error}")))
}

qcowfuzz::command!(qemu());
