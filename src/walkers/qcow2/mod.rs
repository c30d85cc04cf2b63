//! The walker: `map_extents` and its companions, for use by anyone who wants to know what a qcow2
//! image maps where.
//!
//! It reads any [`Storage`], in bounded memory: table by table, in pieces, skipping holes. Nothing
//! that an image holds makes it panic, or work in proportion to more than the tables that its L1 entries
//! name (one that is named twice is walked twice). Where qemu-img and the specification leave room, it
//! answers as `qemu-img map` does.
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
pub use scratch::Scratch;
pub use walk::map_extents;
