//! The image that a program builds: the mapping of clusters, and the bytes that encode it.
//!
//! [`Builder`] is a writer of qcow2, reduced to the mapping. It is total: an operation that is not possible (the file
//! is full, a count is at its maximum) has no effect, and returns that. Building the image's bytes does not change
//! the builder, so a program can be built and verified at any point.

mod attacks;
mod bitmaps;
mod builder;
mod census;
pub mod clusters;
mod compressed;
mod declare;
mod drawer;
mod encoding;
mod features;
mod file;
mod given;
mod header;
mod l1;
mod mapped;
mod out_of_date;
pub mod payload;
pub mod placement;
mod plan;
mod raw;
pub mod refcounts;
mod rules;
mod rules_of_entries;
mod serialise;
mod snapshot_table;
mod snapshots;
mod sparse_table;
mod state;
mod stored;
mod subclusters;
pub mod tables;
mod vm_state;

pub use builder::Builder;
pub use census::Census;
pub use compressed::{CompressedPlace, CompressedWrite, Packing, PayloadFrame};
pub use drawer::Drawer;
pub use encoding::sizes::Sizes;
pub use header::names::{Names, NamesTooLong};
pub use header::style::{
    BackingPlan, DataFilePlan, HeaderFlags, HeaderLength, HeaderOptions, HeaderStyle, NamesFormat,
};
pub use mapped::MappedCluster;
pub use plan::{ImagePlan, MAX_SIZE_BYTES};
pub(in crate::images) use rules_of_entries::EntryRules;
pub use serialise::BuildScratch;
pub use state::{FileEnd, Fill, GivenString, Leaving, NewBitmap, SnapshotDetails, VmState};
pub use stored::StoredData;
