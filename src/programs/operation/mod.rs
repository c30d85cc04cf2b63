//! The operations: one table of opcodes, which defines decoding, encoding, text, class and plainer forms. Opcodes are
//! append-only: an opcode never changes its meaning or its operands.

mod aliases;
mod class;
mod definition;
mod table;

pub use class::Class;
pub use definition::OPERATION_BYTES;
pub use table::Operation;
