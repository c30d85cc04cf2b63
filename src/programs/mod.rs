//! The virtual machine: bytes become a program, and a program becomes an image and a journal of the meaning of its
//! operations.
//!
//! Decoding is total (every byte string is a program), local (an operation is a record of eight bytes, so a changed
//! byte changes one operation), stable (canonical encodings never change their meaning) and canonical (decoding an
//! encoded program returns the same program).

#[cfg(feature = "fuzzer")]
pub(crate) mod export;
pub(crate) mod fold;
pub mod generate;
pub(crate) mod interpreter;
pub(crate) mod journal;
pub(crate) mod operand;
pub(crate) mod operation;
pub(crate) mod program;
pub(crate) mod prologue;
pub(crate) mod request;
pub mod text;

pub(crate) use interpreter::{Effect, Question, Vm};
pub(crate) use journal::{Journal, JournalRecord, Placed};
pub(crate) use operand::CutKind;
pub use operation::Operation;
pub use program::{Input, Program};
pub(crate) use prologue::Prologue;
pub(crate) use request::WriteRequest;
pub use request::{BitmapChange, NewImage};
