//! The state that a [`Builder`](super::Builder) keeps between operations.

mod bitmaps;
mod file;
mod given;
mod l1;
mod place;
mod snapshots;

pub use bitmaps::{Bitmap, Bitmaps, Bits, Fill, Leaving, NewBitmap};
pub use file::{FileEnd, FileState, PayloadEnd};
pub use given::{Given, GivenString};
pub use l1::L1;
pub use place::TablePlace;
pub use snapshots::{Snapshot, SnapshotDetails, Snapshots, VmState};
