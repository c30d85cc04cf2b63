//! The command `qcowfuzz`.

qcowfuzz::command!(qcowfuzz::harness::Implementation::our_walker());
