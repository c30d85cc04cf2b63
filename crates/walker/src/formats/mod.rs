//! A folder for each format, its drawer: the structures of its images, decoded, and the walk of one layer. The files
//! here are what the drawers share, and the list that puts them behind one interface.

pub mod anatomy;
mod blocks;
pub mod entries;
pub mod error;
mod layer;
mod list;
mod probe;
pub mod qcow2;
mod raw;
pub mod structure_field;
pub mod vdi;
pub mod vhdx;
pub mod vmdk;
pub mod vpc;
pub mod words;

pub use layer::Declared;
pub(crate) use layer::{Cover, HoldingFile, Named, TablePieces, at_depth, go_on};
pub(crate) use list::{Buffers, OpenLayer};
pub use list::{check, declared, parts_of, probe, spelled};
