//! A structure-aware fuzz harness for qcow2 disk-image code.
pub mod build;
pub mod content;
pub mod engines;
pub mod entropy;
pub mod error;
pub mod export;
pub mod extent;
pub mod harness;
pub mod image;
pub mod limits;
pub mod map;
pub mod model;
pub mod oracles;
pub mod qcow2;
pub mod storage;
pub mod targets;
pub mod vm;
