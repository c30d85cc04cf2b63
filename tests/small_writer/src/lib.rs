//! A small writer of qcow2 images, the first writer under test. It is simple, and has no cache: it reads and writes
//! each entry of a table in the file. A new cluster is a free one, or follows the last one in use. Tests plant
//! [faults](WriterFault) in it, to prove that the harness finds them in writers.
//!
//! The package is not published: the library reads images, and only the tests need a writer.

mod engine;
mod error;
mod fault;
mod qcow2;

pub use engine::{WritingWalker, implementation};
pub use fault::WriterFault;

use error::WriteError;
