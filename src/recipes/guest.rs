//! The bytes that a guest must read, by the commands of a recipe: a third answer, beside those of QEMU and of the
//! program under test, to questions about data and maps. It knows the writes of qemu-io, and the operations that keep
//! or move data. All other bytes are unknown, and never compared.

mod commands;
mod data;
mod expected;
mod model;
mod samples;

pub(crate) use data::{GuestContent, GuestData};
pub(crate) use expected::{Expected, GUEST_PIECE_BYTES};
pub(crate) use model::GuestModel;
pub(super) use samples::samples;

#[cfg(test)]
pub(crate) mod tests;
