//! Oracles of the structures of qcow2 images: they judge the bytes of an image without an engine.

pub mod bitmaps;
pub mod declarations;
pub mod kept;
pub mod raw_data_file;
pub mod recount;
pub mod refcounts;
pub mod structures;
