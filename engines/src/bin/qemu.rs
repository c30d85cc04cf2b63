//! The whole command of qcowfuzz, with QEMU under test: a long-running qemu-io.

qcowfuzz::command!(qcowfuzz::harness::qemu_io::QemuEngine::default());
