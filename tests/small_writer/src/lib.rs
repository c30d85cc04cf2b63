//! A small writer of qcow2 images, the first writer under test. It is simple, and has no cache: it reads and writes
//! each entry of a table in the file. It appends each new cluster to the file, and never uses a freed one again. Tests
//! plant [faults](WriterFault) in it, to prove that the harness finds them in writers.
//!
//! The package is not published: the library reads images, and only the tests need a writer.

mod engine;
mod error;
mod fault;
mod qcow2;

pub use engine::{WritingWalker, implementation};
pub use fault::WriterFault;

use error::WriteError;
