//! Judges an engine that writes: carries out requests through it, and compares the bytes that a guest then reads, and
//! the image that the engine leaves, with a simple model. A program can cut the power, or kill the engine's process.

mod after_cut;
mod bitmaps;
#[cfg(feature = "fuzzer")]
mod carried_out;
mod created;
mod cut;
mod data_file;
mod guest;
mod judge;
mod kept;
mod mapping;
mod requests;
mod saved;
mod snapshots;
mod state;
mod steps;

pub(crate) use judge::WriterJudge;
