//! The whole command of qcowfuzz, with QEMU under test: a long-running qemu-io.

use qcowfuzz::harness::qemu_io::QemuEngine;
use qcowfuzz::harness::{KnowingEngine, KnownFindings};

/// QEMU with its known findings.
fn qemu() -> KnowingEngine<QemuEngine> {
    let known = KnownFindings::parse(include_str!("../../known/qemu.toml"));
    KnowingEngine::new(
        QemuEngine::default(),
        known.unwrap_or_else(|error| panic!("known findings: {error}")),
    )
}

qcowfuzz::command!(qemu());
