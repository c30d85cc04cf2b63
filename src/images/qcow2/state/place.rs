//! The location of tables.

/// The location of a table: its first cluster, and the number of clusters.
pub type TablePlace = (u64, u64);
