//! A structure-aware fuzz harness for qcow2 disk-image code: the pipeline, told once.
//!
//! ```text
//! input bytes → program → VM ─┬→ builder → image bytes → engine → extents ─┐
//!                             │     (refcounts by the self-referencing     ├→ oracles → violation | ok
//!                             │      fixpoint)                             │
//!                             └→ journal → reference model → expectation ──┘
//! ```
//!
//! Any bytes are a [program](vm::Program). The [VM](vm::Vm) runs it: operations change the image that
//! the [builder](build::Builder) keeps, and the [journal](vm::Journal) records what was meant. The
//! builder writes a sparse [image](image::Image), with refcounts that count themselves; a backing chain
//! has a builder and a journal for each layer, and its [files](images::Images). An
//! [engine](engines::Engine) opens them and answers: extents, mappings of single bytes, data. The
//! [model](model::Model) says the same from the journals alone; it never sees an image. The
//! [oracles] hold the two against each other, and each image's refcounts against its own bytes.
//!
//! [`harness::Harness`] is all of that, with buffers that are reused from run to run; the functions of
//! [`targets`] are what libFuzzer calls. What goes wrong is one of three, never mixed:
//! [`qcow2::error::MapError`] (the image is malformed: a valid answer), [`error::Error`] (the harness
//! could not work), [`oracles::Violation`] (a bug was found).
//!
//! # A run
//!
//! ```
//! use qcowfuzz::engines::Walker;
//! use qcowfuzz::harness::{Checks, Harness};
//! use qcowfuzz::vm::text::assemble;
//!
//! let program = assemble(
//!     "image version=3 cluster_bits=16 refcount_order=4 features=none size=64<<20+0 \
//!      rng_seed=0 blocks=append table=append tolerance=0
//!      write at=start+4 clusters=2
//!      zero at=start+5 clusters=1 keep=yes",
//! )?;
//! let mut harness = Harness::new(Walker::default());
//! let outcome = harness.run(&program.encode(), Checks::AtCheckpoints);
//! assert_eq!(outcome.unwrap().effective, 2);
//! // A hole, data, zeros that keep their cluster, a hole.
//! assert_eq!(harness.actual().len(), 4);
//! # Ok::<(), qcowfuzz::error::Error>(())
//! ```
//!
//! Another implementation in the walker's place: [`engines`].
//!
//! # Features
//!
//! A fuzz target needs none of them: `default-features = false`.
//!
//! - `fuzzer`: the embedded loop, `fuzzer`, and inputs as files, `corpus`.
//! - `cli` (default): the command `qcowfuzz`, and `fuzzer` with it.

pub mod anatomy;
pub mod build;
pub mod chain;
pub mod content;
#[cfg(feature = "fuzzer")]
pub mod corpus;
pub mod damage;
pub mod engines;
pub mod entropy;
pub mod error;
pub mod explain;
pub mod export;
pub mod extent;
pub mod feedback;
#[cfg(feature = "fuzzer")]
pub mod fuzzer;
pub mod harness;
pub mod head;
pub mod image;
pub mod images;
pub mod limits;
pub mod map;
pub mod minimizer;
pub mod model;
pub mod mutators;
pub mod observer;
pub mod oracles;
pub mod panics;
pub mod qcow2;
pub mod regression;
pub mod snapshot_table;
pub mod storage;
pub mod targets;
pub mod vm;
pub mod watch;
