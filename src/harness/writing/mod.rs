//! Judges an engine that writes: carries out requests through it, and compares the bytes that a guest then reads, and
//! the image that the engine leaves, with a simple model.

mod guest;
mod judge;
mod power_cut;

pub(crate) use judge::WriterJudge;
