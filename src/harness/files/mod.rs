//! The files of an image chain, as an engine gets them: in memory. The harness counts the accesses, logs writes, and
//! lets reads fail where a program says so.

pub mod chain;
pub(crate) mod meter;
pub mod stream;
mod top_files;
mod write_log;
mod written_file;
