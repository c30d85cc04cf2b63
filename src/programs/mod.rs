//! The virtual machine: bytes become a program, a program becomes an image and a journal of what was
//! meant by it.
//!
//! Decoding is total (every byte string is a program), local (an operation is a record of eight
//! bytes, so a changed byte changes one operation), stable (canonical encodings mean the same for
//! ever) and canonical (decoding what was encoded gives the same program).

mod events;
pub mod generate;
pub mod interpreter;
pub mod journal;
pub mod operand;
pub mod operation;
pub mod program;
pub mod prologue;
pub mod text;

pub use interpreter::{Effect, Question, Vm};
pub use journal::{Journal, Record};
pub use operation::Operation;
pub use program::Program;
pub use prologue::Prologue;
