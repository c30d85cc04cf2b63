//! Engines of this repository: our walker, a program behind the line protocol, a program with the command line of
//! qemu-img, and two engines in turn; and for engines that need paths, the files of a chain in a folder.

#[cfg(feature = "fuzzer")]
pub(crate) mod chain_files;
#[cfg(feature = "fuzzer")]
pub mod command;
#[cfg(feature = "fuzzer")]
mod command_lines;
#[cfg(feature = "fuzzer")]
pub(crate) mod engine_process;
#[cfg(feature = "fuzzer")]
pub(crate) mod image_answers;
#[cfg(feature = "fuzzer")]
pub mod image_program;
#[cfg(feature = "fuzzer")]
mod in_turn;
pub(crate) mod walker;
