//! Where tables lie.

/// Where a table lies: its first cluster, and how many.
pub type Place = (u64, u64);
