//! The bytes that a guest must read, by the commands of a recipe: a third answer, beside those of QEMU and of the
//! program under test, to questions about data and maps. It knows the writes of qemu-io, and the operations that keep
//! or move data. All other bytes are unknown, and never compared.

mod commands;
mod compare;
mod data;
mod expected;
mod model;
mod zeros;

pub(super) use compare::compare;
pub(super) use model::GuestModel;
pub(super) use zeros::compare_zeros;

#[cfg(test)]
mod tests;
