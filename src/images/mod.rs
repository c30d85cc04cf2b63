//! Images in memory: the build, the content of clusters, damage, and the export to files.

pub(crate) mod content;
pub(crate) mod damage;
pub(crate) mod files;
pub(crate) mod format;
pub(crate) mod limits;
pub(crate) mod qcow2;
pub(crate) mod raw;
pub(crate) mod vdi;
pub(crate) mod vhdx;
pub(crate) mod vmdk;
pub(crate) mod vpc;

pub use files::image::Image;
pub use files::{FileNames, Images};
pub use limits::Limits;
