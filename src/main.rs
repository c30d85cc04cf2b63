//! The command `qcowfuzz`.

qcowfuzz::command!(qcowfuzz::harness::implementation::OurWalker);
