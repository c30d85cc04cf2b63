//! The command `qcowfuzz`.

qcowfuzz::command!(qcowfuzz::harness::cases::implementation::Implementation::our_walker());
