//! Images in memory: the build, the content of clusters, damage, and the export to files.

mod block_table;
pub(crate) mod checksums;
pub(crate) mod content;
pub(crate) mod damage;
pub(crate) mod declarations;
pub(crate) mod deep;
pub(crate) mod entropy;
pub(crate) mod export;
mod field_changes;
pub(crate) mod file_plan;
pub(crate) mod files;
pub(crate) mod fill;
pub(crate) mod format;
pub(crate) mod image;
pub(crate) mod layer_anatomy;
pub(crate) mod limits;
pub(crate) mod list;
pub(crate) mod look;
pub(crate) mod qcow2;
pub(crate) mod raw;
pub(crate) mod rule;
mod rule_bytes;
mod sealed;
pub(crate) mod structures;
pub(crate) mod unstamped;
pub(crate) mod vdi;
pub(crate) mod vhdx;
pub(crate) mod vmdk;
pub(crate) mod vpc;

pub use files::{FileNames, Images};
pub use image::Image;
pub use limits::Limits;
