//! Judges an engine that writes: carries out requests through it, and compares the bytes that a guest then reads, and
//! the image that the engine leaves, with a simple model.

mod cut;
mod guest;
mod judge;

pub(crate) use judge::WriterJudge;
