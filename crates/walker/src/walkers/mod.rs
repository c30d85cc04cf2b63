//! Walkers: from the bytes of images to extents. A folder for each format walks one layer; the files here open a chain
//! of layers, and walk, look up and read all of it.
//!
//! A walker reads any [`Storage`], in bounded memory: table by table, in pieces, skipping holes. No image makes it
//! panic. Its work is at most proportional to the tables that the image names (a table that is named twice is walked
//! twice). If the specification leaves room, it answers as `qemu-img map` does.
//!
//! [`Storage`]: crate::disk::storage::Storage

pub mod chain;
mod cover;
mod declared;
mod disk;
mod host_holes;
mod lookup;
mod map;
mod measure;
mod pieces;
mod qcow2;
mod raw;
mod read;
mod scratch;
mod vhdx;
mod vmdk;
mod vpc;

pub use crate::formats::error::MapError;
pub use declared::{Declared, declared};
pub use disk::Disk;
pub use lookup::lookup;
pub use map::map_extents;
pub use measure::{MeasureError, Measurement, PlannedImage, PlannedQcow2};
pub use qcow2::{CheckFinding, CheckedQcow2, FindingCounts, GuestClusters, check_qcow2};
pub use read::read;
pub use scratch::WalkScratch;
pub use vhdx::check_vhdx;
pub use vmdk::check_vmdk;
pub use vmdk::{ExtentFacts, VmdkFacts, vmdk_facts};
