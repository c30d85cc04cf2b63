//! Any engine against any engine: a second one answers about the same image, and the answers are compared.

#[cfg(feature = "fuzzer")]
pub(crate) mod differences;
#[cfg(feature = "fuzzer")]
mod disks;
#[cfg(feature = "fuzzer")]
pub mod qemu_io;
#[cfg(feature = "fuzzer")]
pub(crate) mod second_engine;
pub mod second_opinion;
