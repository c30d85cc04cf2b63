//! Images in memory: the build, the content of clusters, damage, and the export to files.

pub mod content;
pub mod damage;
pub mod entropy;
pub mod export;
pub mod files;
pub mod image;
pub mod limits;
pub mod qcow2;
