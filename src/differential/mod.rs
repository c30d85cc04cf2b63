//! The differential campaign. QEMU makes and changes disk images, QEMU and the program under test answer the same
//! questions about each of them, and every difference is a divergence.

pub mod campaign;
mod command_findings;
mod compare;
pub mod cpu;
pub mod distribution;
pub mod divergence;
mod issue;
pub mod iteration;
pub mod known;
pub mod minimize;
pub mod page;
pub mod reason;
pub mod recording;
pub mod reports;
mod second_copy;
pub mod sides;
mod stamps;
pub mod summary;
mod third_answer;
pub mod workdir;
