//! Images in memory: how they are built, what their clusters contain, how they are damaged, and their export to files.

pub mod content;
pub mod damage;
pub mod entropy;
pub mod export;
pub mod files;
pub mod image;
pub mod limits;
pub mod qcow2;
