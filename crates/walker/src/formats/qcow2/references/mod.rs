//! The references to the clusters of an image: their sums, the counts on disk, and the comparison of both. The recount
//! and the check of qcow2 images collect them, each by its own way through the tables.

mod clusters;
mod compare;
mod report;

pub use clusters::ClusterCounts;
pub use report::{Occupied, RefcountFault, RefcountReport, Role};
