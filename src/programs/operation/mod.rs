//! The operations: one table of opcodes, from which decoding, encoding, text, class and plainer forms follow. Opcodes are
//! append-only: a number that is taken keeps its meaning and its operands.

mod aliases;
mod class;
mod definition;
mod table;

pub use class::Class;
pub use definition::OPERATION_BYTES;
pub use table::Operation;
