//! Walkers: from the bytes of images to extents. The files here open a chain of layers, and walk, look up and read all
//! of it; the drawer of each format ([`formats`](crate::formats)) walks one layer.
//!
//! A walker reads any [`Storage`], in bounded memory: table by table, in pieces, skipping holes. No image makes it
//! panic. Its work is at most proportional to the tables that the image names (a table that is named twice is walked
//! twice). If the specification leaves room, it answers as `qemu-img map` does.
//!
//! [`Storage`]: crate::disk::storage::Storage

pub mod chain;
mod disk;
mod host_holes;
mod map;
mod measure;
mod read;

pub use crate::formats::error::MapError;
pub use crate::formats::qcow2::check::{
    CheckBounds, CheckFinding, CheckedQcow2, FindingCounts, GuestClusters, check_qcow2,
};
pub use crate::formats::{Declared, check, declared};
pub use crate::formats::{ExtentFacts, ExtentsFacts, extents_facts};
pub use disk::{Disk, WalkScratch};

pub use map::map_extents;
pub use measure::{MeasureError, Measurement, PlannedImage, PlannedQcow2};
pub use read::{lookup, read};
