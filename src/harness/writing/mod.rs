//! Judges an engine that writes: carries out requests through it, and compares the bytes that a guest then reads, and
//! the image that the engine leaves, with a simple model. A program can cut the power, or kill the engine's process.

mod after_cut;
mod bitmaps;
mod created;
mod guest;
mod judge;
mod left_files;
mod requests;
mod state;
mod steps;

pub(crate) use judge::WriterJudge;
