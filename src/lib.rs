//! A structure-aware fuzz harness for code that reads or writes disk images: the pipeline in one page.
//!
//! ```text
//! input bytes → program → VM ─┬→ builder → image bytes → engine → extents ─┐
//!                             │     (refcounts by the self-referencing     ├→ oracles → violation | ok
//!                             │      fixpoint)                             │
//!                             └→ journal → reference model → expectation ──┘
//! ```
//!
//! Any bytes are a [program](programs::Program). The virtual machine runs it. Each operation changes the
//! image that the builder keeps, and the journal records the meaning of the
//! operation. The builder writes a sparse [image](images::Image), whose refcounts count the refcount structures
//! themselves. A backing chain has a builder and a journal for each layer, and its [files](images::Images). An
//! [engine](harness::engine::Engine) opens the files and answers questions: extents, mappings of single bytes, data.
//! The reference model answers the same questions from the journals alone; it never sees an image. The oracles
//! (`harness::oracles`) compare the answers, and compare the refcounts of each image with its references.
//!
//! [`harness::Harness`] does all of this, with buffers that are reused from run to run. The functions of
//! [`fuzzing::libfuzzer`] are the entry points of libFuzzer. Three kinds of failure are never mixed:
//! [`MapError`](walkers::MapError) (the image is malformed: a valid answer), [`Error`](base::error::Error)
//! (the harness could not work), [`Violation`](harness::Violation) (an oracle found a bug).
//!
//! # A run
//!
//! ```
//! use qcowfuzz::harness::{Checks, Harness, Walker};
//! use qcowfuzz::programs::text::assemble;
//!
//! let program = assemble(
//!     "image version=3 cluster_bits=16 refcount_order=4 features=none size=64<<20+0 \
//!      rng_seed=0 blocks=append table=append tolerance=0
//!      write at=start+4 clusters=2
//!      zero at=start+5 clusters=1 keep=yes",
//! )?;
//! let mut harness = Harness::new(Walker::default());
//! let outcome = harness.run(&program.encode(), Checks::default());
//! assert_eq!(outcome.unwrap().effective, 2);
//! // A hole, data, zeros that keep their cluster, a hole.
//! assert_eq!(harness.actual().len(), 4);
//! # Ok::<(), qcowfuzz::base::error::Error>(())
//! ```
//!
//! To fuzz your own implementation, implement the traits of [`harness::engine`], with the items of [`prelude`].
//!
//! # Features
//!
//! A fuzz target needs no feature: `default-features = false`.
//!
//! - `fuzzer`: the embedded loop (`fuzzing::embedded`), campaigns, inputs as files (`fuzzing::corpus`), and the
//!   evidence of a finding: runs in processes of their own, judges, triage, reports.
//! - `cli` (default): the command `qcowfuzz` ([`command!`]), and the page and the archive of a finding; it enables
//!   `fuzzer`.

pub mod base;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
mod differential;
pub mod findings;
pub mod fuzzing;
pub mod harness;
pub mod images;
#[doc(hidden)]
pub mod internal;
pub mod processes;
pub mod programs;
#[cfg(feature = "cli")]
mod recipes;

#[doc(no_inline)]
pub use harness::prelude;
#[doc(no_inline)]
pub use qcowfuzz_walker::{disk, formats, walkers};
