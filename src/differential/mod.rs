//! The differential campaign. QEMU makes and changes disk images, QEMU and the program under test answer the same
//! questions about each of them, and every difference is a divergence.

pub mod campaign;
mod compare;
pub mod divergence;
pub mod iteration;
pub mod minimize;
pub mod reason;
pub mod recording;
pub mod reports;
pub mod sides;
pub mod summary;
pub mod workdir;
