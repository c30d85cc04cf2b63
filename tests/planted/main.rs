//! The oracles find faults that are planted: in the answers of an engine, in the bytes of an image, in what a writer
//! leaves. Each fault has the fingerprints that it must have.

mod altered;
mod attacks;
mod bytes;
mod declarations;
mod engines;
mod files;
mod layout;
#[allow(dead_code)]
#[path = "../lines/mod.rs"]
mod lines;
#[path = "faults/mod.rs"]
mod planted;
#[allow(dead_code)]
#[path = "../qemu/tools/mod.rs"]
mod qemu;
mod reports;
mod untouched;
mod writers;
