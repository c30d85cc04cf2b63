//! The roles of clusters, and the findings of the comparison.

use std::fmt;

use crate::disk::clusters::HostCluster;

/// The structure that references a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The header.
    Header,
    /// The refcount table.
    RefcountTable,
    /// A refcount block.
    RefcountBlock,
    /// An L1 table, the active one or a snapshot's.
    L1Table,
    /// The snapshot table.
    SnapshotTable,
    /// The bitmap directory.
    BitmapDirectory,
    /// A bitmap table.
    BitmapTable,
    /// Bits of a bitmap.
    BitmapData,
    /// An L2 table.
    L2Table,
    /// Guest data, or a cluster that is allocated for them.
    Data,
    /// Compressed guest data.
    Compressed,
    /// A table of blocks of an image in another format.
    BlockTable,
    /// The bytes before the data of a block in another format.
    BlockFront,
    /// A table of structures of an image in another format.
    Directory,
    /// The description of the disk in another format.
    Metadata,
}

impl Role {
    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::RefcountTable => "refcount table",
            Self::RefcountBlock => "refcount block",
            Self::L1Table => "L1 table",
            Self::SnapshotTable => "snapshot table",
            Self::BitmapDirectory => "bitmap directory",
            Self::BitmapTable => "bitmap table",
            Self::BitmapData => "bitmap data",
            Self::L2Table => "L2 table",
            Self::Data => "data",
            Self::Compressed => "compressed data",
            Self::BlockTable => "block table",
            Self::BlockFront => "front of a block",
            Self::Directory => "directory",
            Self::Metadata => "metadata",
        }
    }

    /// Reports whether this role may reference a cluster more than once.
    pub(super) fn shared(self) -> bool {
        matches!(self, Self::L2Table | Self::Data | Self::Compressed)
    }
}

/// A run of clusters of one role, with the same number of references and the same count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// The first cluster.
    pub first: u64,
    /// The cluster after the last.
    pub end: u64,
    /// The role of the first reference; `None` if a count is all that the clusters have.
    pub role: Option<Role>,
    /// The number of references.
    pub references: u64,
    /// The count on disk.
    pub on_disk: u64,
}

/// A fault in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefcountFault {
    /// The count on disk is higher than the references: space is lost.
    Leak,
    /// The count on disk is lower than the references: data will be overwritten.
    Corruption,
    /// A COPIED flag disagrees with the count.
    Copied,
    /// Two structures lie in one cluster.
    Overlap,
}

/// A finding of the recount, and its clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefcountReport {
    /// The fault.
    pub finding: RefcountFault,
    /// The first cluster.
    pub cluster: HostCluster,
    /// The number of clusters.
    pub clusters: u64,
    /// The number of references.
    pub references: u64,
    /// The count on disk.
    pub on_disk: u64,
    /// The role of the first reference; `None` without a reference.
    pub role: Option<Role>,
}

/// Prints the clusters, their role and both counts.
impl fmt::Display for RefcountReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { finding, cluster, clusters, references, on_disk, role } = self;
        let finding = match finding {
            RefcountFault::Leak => format!("leaked, references {references}"),
            RefcountFault::Corruption => format!("counted too low, references {references}"),
            // For a COPIED finding, the value of the flag stands in place of the references.
            RefcountFault::Copied if *references == 1 => "COPIED is set".to_string(),
            RefcountFault::Copied => "COPIED is not set".to_string(),
            RefcountFault::Overlap => "another structure lies there too".to_string(),
        };
        let role = role.map_or("unreferenced", Role::name);
        write!(f, "cluster {cluster}")?;
        if *clusters > 1 {
            write!(f, " and {} behind it", clusters - 1)?;
        }
        write!(f, " ({role}): {finding}, refcount {on_disk}")
    }
}
