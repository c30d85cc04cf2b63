//! Refcounts, recomputed from the bytes of an image alone: every structure is read, every reference
//! noted, and the counts compared with those on disk. The same for an image in the loop and for a
//! file of any size: it takes memory in proportion to the references, not to the file.
//!
//! The recount follows the references by itself, although the walker and the build do so too. It is there to find the errors
//! of both, so it must not share their way through the tables. It shares the reading of tables with the anatomy and with
//! [`entries`](super::entries), which judge neither.

mod bitmaps;
mod compare;
mod counts;
mod references;

use std::fmt;
use std::ops::ControlFlow;

use crate::disk::limits::MAX_RECOUNTED;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{PIECE_BYTES, Storage};
use crate::formats::qcow2::error::MapError;
use crate::formats::qcow2::head::Head;
use crate::formats::qcow2::table::HostTable;
use crate::formats::qcow2::units::HostCluster;

/// What references a cluster.
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
    /// Guest data, or an allocation for them.
    Data,
    /// Compressed guest data.
    Compressed,
}

impl Role {
    /// What it is called.
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
        }
    }

    /// Whether a cluster may be referenced more than once by this role.
    fn shared(self) -> bool {
        matches!(self, Self::L2Table | Self::Data | Self::Compressed)
    }
}

/// Clusters that something references.
#[derive(Clone, Copy, Debug)]
struct Reference {
    first: u64,
    end: u64,
    role: Role,
    /// What the reference says of the refcount being exactly one, where it says anything.
    copied: Option<bool>,
}

/// Clusters with the same count.
#[derive(Clone, Copy, Debug)]
struct Counted {
    first: u64,
    end: u64,
    count: u64,
    role: Role,
}

/// Neighbouring clusters of one role, with the same number of references and the same count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// The first.
    pub first: u64,
    /// The one past the last.
    pub end: u64,
    /// What references them first; `None` where nothing does, and they are counted all the same.
    pub role: Option<Role>,
    /// How many references there are.
    pub references: u64,
    /// The count on disk.
    pub on_disk: u64,
}

/// Something that is wrong with a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The count on disk is higher than the references: space is lost.
    Leak,
    /// The count on disk is lower than the references: data will be overwritten.
    Corruption,
    /// A COPIED flag disagrees with the count.
    Copied,
    /// Two structures lie in one cluster.
    Overlap,
}

/// One finding, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What.
    pub finding: Finding,
    /// The first cluster.
    pub cluster: HostCluster,
    /// How many clusters.
    pub clusters: u64,
    /// How many references there are.
    pub references: u64,
    /// The count on disk.
    pub on_disk: u64,
    /// What references the cluster; `None` where nothing does.
    pub role: Option<Role>,
}

/// Which clusters, what references them, and both counts.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { finding, cluster, clusters, references, on_disk, role } = self;
        let finding = match finding {
            Finding::Leak => format!("leaked, references {references}"),
            Finding::Corruption => format!("counted too low, references {references}"),
            // Of a flag, what it says stands in place of the references.
            Finding::Copied if *references == 1 => "COPIED is set".to_string(),
            Finding::Copied => "COPIED is not set".to_string(),
            Finding::Overlap => "another structure lies there too".to_string(),
        };
        let role = role.map_or("unreferenced", Role::name);
        write!(f, "cluster {cluster}")?;
        if *clusters > 1 {
            write!(f, " and {} behind it", clusters - 1)?;
        }
        write!(f, " ({role}): {finding}, refcount {on_disk}")
    }
}

/// Recounts images. All buffers are reused.
#[derive(Debug)]
pub struct Recount {
    references: Vec<Reference>,
    computed: Vec<Counted>,
    on_disk: Vec<Counted>,
    reports: Vec<Report>,
    tables: [Vec<u8>; 2],
    /// Bytes of the active L1 and L2 tables that are there.
    active_table_bytes: u64,
    /// The same of all snapshots together.
    snapshot_table_bytes: u64,
    /// Entries of bitmap tables that were read: most reference nothing.
    bitmap_entries: usize,
    /// The file's end in clusters, rounded up.
    file_clusters: u64,
    /// How many references, counts or reports may be kept.
    bound: usize,
}

impl Recount {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Self {
            references: Vec::new(),
            computed: Vec::new(),
            on_disk: Vec::new(),
            reports: Vec::new(),
            tables: [vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]],
            active_table_bytes: 0,
            bitmap_entries: 0,
            snapshot_table_bytes: 0,
            file_clusters: 0,
            bound: MAX_RECOUNTED,
        }
    }

    /// Keeps at most `bound` references, counts or reports; an image that needs more is an error.
    pub fn bounded(bound: usize) -> Self {
        Self { bound, ..Self::new() }
    }

    /// Recounts the image in `storage`; what was found, by cluster.
    ///
    /// # Errors
    /// The header, the snapshot table, the bitmap directory or an entry is malformed, or a read failed.
    pub fn recount<S: Storage + ?Sized>(&mut self, storage: &S) -> Result<&[Report], MapError> {
        self.references.clear();
        self.computed.clear();
        self.on_disk.clear();
        self.reports.clear();
        (self.active_table_bytes, self.snapshot_table_bytes) = (0, 0);
        (self.bitmap_entries, self.file_clusters) = (0, 0);
        let Head { header, bitmaps, .. } = Head::read(storage)?;
        let geometry = header.geometry;
        self.file_clusters = geometry.cluster_size.clusters_for(storage.length_bytes());
        self.reference(&geometry, HostOffset::ZERO, 1, Role::Header);
        self.l1(storage, &geometry, HostTable::active_l1(&header), true)?;
        self.snapshots(storage, &header)?;
        if let Some(extension) = bitmaps {
            self.bitmaps(storage, &header, &extension)?;
        }
        self.counts(storage, &header)?;
        self.references.sort_unstable_by_key(|reference| reference.first);
        self.add_up()?;
        self.compare();
        Ok(&self.reports)
    }

    /// Reads a table piece by piece, without its holes, and passes each piece on with its place in the table. While `take`
    /// works, other tables are read on another `level`.
    fn each_piece<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        table: HostTable,
        level: usize,
        mut take: impl FnMut(&mut Self, u64, &[u8]) -> Result<(), MapError>,
    ) -> Result<(), MapError> {
        let mut piece = std::mem::take(&mut self.tables[level]);
        let all = table.each_piece(storage, &mut piece, |skipped, bytes| {
            take(self, skipped, bytes).map(|()| ControlFlow::Continue(()))
        });
        self.tables[level] = piece;
        all.map(|_| ())
    }

    /// Bytes of the active L1 and L2 tables that are there, holes not counted.
    pub fn active_table_bytes(&self) -> u64 {
        self.active_table_bytes
    }

    /// Bytes of the L1 and L2 tables of all snapshots; what they share counts for each.
    pub fn snapshot_table_bytes(&self) -> u64 {
        self.snapshot_table_bytes
    }

    /// All clusters of the image that was recounted last that something references or that have a count, in the
    /// order of the file.
    pub fn occupied(&self) -> Vec<Occupied> {
        let ends = |counted: &Counted| [counted.first, counted.end];
        let mut edges: Vec<u64> =
            self.computed.iter().chain(&self.on_disk).flat_map(ends).collect();
        edges.sort_unstable();
        edges.dedup();
        let at = |counted: &[Counted], cluster: u64| {
            let next = counted.partition_point(|counted| counted.end <= cluster);
            counted.get(next).copied().filter(|counted| counted.first <= cluster)
        };
        let piece = |edges: &[u64]| {
            let [first, end] = *edges.first_chunk::<2>()?;
            let (computed, on_disk) = (at(&self.computed, first), at(&self.on_disk, first));
            let role = computed.map(|counted| counted.role);
            let references = computed.map_or(0, |counted| counted.count);
            let on_disk = on_disk.map_or(0, |counted| counted.count);
            let there = references > 0 || on_disk > 0;
            there.then_some(Occupied { first, end, role, references, on_disk })
        };
        edges.windows(2).filter_map(piece).collect()
    }

    /// The cluster past the last one before `limit` that is referenced or counted.
    pub fn end_cluster_within(&self, limit: u64) -> HostCluster {
        let end = |counted: &[Counted]| {
            let before = counted.partition_point(|counted| counted.first < limit);
            counted[..before].last().map_or(0, |last| last.end.min(limit))
        };
        HostCluster::new(end(&self.computed).max(end(&self.on_disk)))
    }

    /// References to what is not in the file. Up to one cluster may be missing at its end, as
    /// `qemu-img check` has it; of compressed data, what follows the first cluster.
    pub fn past_end(&self) -> impl Iterator<Item = (Role, std::ops::Range<HostCluster>)> {
        let end = self.file_clusters;
        self.references.iter().filter_map(move |reference| {
            let past = match reference.role {
                Role::Compressed => reference.first >= end,
                _ => reference.end > end,
            };
            let clusters = HostCluster::new(reference.first)..HostCluster::new(reference.end);
            past.then_some((reference.role, clusters))
        })
    }
}

impl Default for Recount {
    fn default() -> Self {
        Self::new()
    }
}
