//! The walker: `map_extents` and related functions, which return the mapping of a qcow2 image.
//!
//! It reads any [`Storage`], in bounded memory: table by table, in pieces, skipping holes. No image makes it panic. Its
//! work is at most proportional to the tables that the image's L1 entries name (a table that is named twice is walked
//! twice). If the specification leaves room, it answers as `qemu-img map` does.
//!
//! [`Storage`]: crate::disk::storage::Storage

mod disk;
mod inflate;
mod latest;
mod lookup;
mod read;
mod scratch;
mod walk;

pub use crate::formats::qcow2::error::MapError;
pub use disk::Disk;
pub use lookup::lookup;
pub use read::read;
pub use scratch::WalkScratch;
pub use walk::map_extents;
