//! The command `qcowfuzz`.

qcowfuzz::command!(qcowfuzz::harness::implementation::Implementation::our_walker());
