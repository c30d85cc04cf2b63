//! The oracles find faults that are planted: in the answers of an engine, in the bytes of an image, in what a writer
//! leaves. Each fault has the fingerprints that it must have.

mod altered;
mod attacks;
mod bytes;
mod declarations;
mod engines;
mod files;
mod layout;
mod reports;
mod untouched;
mod writers;
