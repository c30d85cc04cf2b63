//! Refcounts, recomputed from the bytes of an image alone: every structure is read, every reference
//! noted, and the counts compared with those on disk. The same for an image in the loop and for a
//! file of any size: it takes memory in proportion to the references, not to the file.

use crate::limits::MAX_RECOUNTED;
use crate::qcow2::entry::{ClusterKind, L1Entry, L2Entry};
use crate::qcow2::error::MapError;
use crate::qcow2::header::{
    AUTOCLEAR_BITMAPS, Geometry, Header, INCOMPATIBLE_DATA_FILE, PARSED_BYTES,
};
use crate::qcow2::refcount;
use crate::qcow2::snapshot::{FIXED_BYTES, MAX_EXTRA_BYTES, SnapshotEntry};
use crate::qcow2::units::{HostCluster, HostOffset};
use crate::storage::{GRAIN_BYTES, Storage};

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
    /// An L2 table.
    L2Table,
    /// Guest data, or an allocation for them.
    Data,
    /// Compressed guest data.
    Compressed,
}

impl Role {
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
    /// The file's end in clusters, rounded up.
    file_clusters: u64,
}

/// How much of a table is read at a time.
const PIECE_BYTES: usize = 32 << 10;

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
            file_clusters: 0,
        }
    }

    /// Recounts the image in `storage`; what was found, by cluster.
    ///
    /// # Errors
    /// The header, the snapshot table or an entry is malformed, or a read failed.
    pub fn recount<S: Storage + ?Sized>(&mut self, storage: &S) -> Result<&[Report], MapError> {
        self.references.clear();
        self.on_disk.clear();
        self.reports.clear();
        self.active_table_bytes = 0;
        let mut first_bytes = [0; PARSED_BYTES];
        storage.read_at(HostOffset::ZERO, &mut first_bytes)?;
        let header = Header::parse(&first_bytes)?;
        if header.autoclear & AUTOCLEAR_BITMAPS != 0 {
            return Err(MapError::Unsupported("bitmaps"));
        }
        if header.incompatible & INCOMPATIBLE_DATA_FILE != 0 {
            return Err(MapError::Unsupported("external data file"));
        }
        let geometry = header.geometry;
        self.file_clusters = geometry.cluster_size.clusters_for(storage.length_bytes());
        self.reference(&geometry, HostOffset::ZERO, 1, Role::Header);
        self.l1(storage, &geometry, header.l1_offset, header.l1_entries, true)?;
        self.snapshots(storage, &header)?;
        self.counts(storage, &header)?;
        self.references.sort_unstable_by_key(|reference| reference.first);
        self.add_up();
        self.compare();
        Ok(&self.reports)
    }

    /// Bytes of the active L1 and L2 tables that are there, holes not counted.
    pub fn active_table_bytes(&self) -> u64 {
        self.active_table_bytes
    }

    /// How many clusters are referenced.
    pub fn allocated_clusters(&self) -> u64 {
        self.computed.iter().map(|counted| counted.end - counted.first).sum()
    }

    /// The host offset past the last cluster that is referenced or counted.
    pub fn end_cluster(&self) -> HostCluster {
        let ends = self.computed.last().into_iter().chain(self.on_disk.last());
        HostCluster::new(ends.map(|counted| counted.end).max().unwrap_or(0))
    }

    /// The same, of the clusters before `limit` alone.
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

    fn reference(&mut self, geometry: &Geometry, at: HostOffset, length_bytes: u64, role: Role) {
        self.reference_copied(geometry, at, length_bytes, role, None);
    }

    #[inline]
    fn reference_copied(
        &mut self,
        geometry: &Geometry,
        at: HostOffset,
        length_bytes: u64,
        role: Role,
        copied: Option<bool>,
    ) {
        if length_bytes == 0 {
            return;
        }
        let first = geometry.cluster_size.host_cluster(at).get();
        let last = at.saturating_add(length_bytes - 1);
        let end = geometry.cluster_size.host_cluster(last).get() + 1;
        self.references.push(Reference { first, end, role, copied });
    }

    fn l1<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        geometry: &Geometry,
        table: HostOffset,
        entries: u32,
        active: bool,
    ) -> Result<(), MapError> {
        let length = u64::from(entries) * 8;
        let cluster = geometry.cluster_size.bytes();
        self.reference(geometry, table, length, Role::L1Table);
        let until = table.saturating_add(length.next_multiple_of(GRAIN_BYTES));
        let mut from = table;
        let mut piece = std::mem::take(&mut self.tables[0]);
        while from < until
            && let Some(data) = storage.next_data(from, until, &mut piece)?
        {
            from = data.offset.saturating_add(data.bytes.len() as u64);
            let skipped = data.offset.distance_from(table).unwrap_or(0) / 8;
            if active {
                self.active_table_bytes += data.bytes.len() as u64;
            }
            for (index, bytes) in (skipped..).zip(data.bytes.as_chunks::<8>().0) {
                let entry = L1Entry(u64::from_be_bytes(*bytes));
                if let Some(l2) = entry.table().filter(|_| index < u64::from(entries)) {
                    let copied = active.then_some(entry.copied());
                    self.reference_copied(geometry, l2, cluster, Role::L2Table, copied);
                    self.l2(storage, geometry, l2, active)?;
                    self.check_bound()?;
                }
            }
        }
        self.tables[0] = piece;
        Ok(())
    }

    fn l2<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        geometry: &Geometry,
        table: HostOffset,
        active: bool,
    ) -> Result<(), MapError> {
        let until = table.saturating_add(geometry.cluster_size.bytes());
        let entry_bytes = geometry.l2_entry_bytes() as usize;
        let mut from = table;
        let mut piece = std::mem::take(&mut self.tables[1]);
        while from < until
            && let Some(data) = storage.next_data(from, until, &mut piece)?
        {
            from = data.offset.saturating_add(data.bytes.len() as u64);
            if active {
                self.active_table_bytes += data.bytes.len() as u64;
            }
            for bytes in data.bytes.chunks_exact(entry_bytes) {
                let Some(word) = bytes.first_chunk::<8>() else { continue };
                let word = u64::from_be_bytes(*word);
                if word != 0 {
                    self.entry(geometry, L2Entry(word), active);
                }
            }
        }
        self.tables[1] = piece;
        Ok(())
    }

    fn entry(&mut self, geometry: &Geometry, entry: L2Entry, active: bool) {
        // An entry that means nothing references nothing; the walker says what is wrong with it.
        let (at, length, role) = match entry.kind(geometry) {
            Ok(
                ClusterKind::ZeroAllocated(host)
                | ClusterKind::Normal(host)
                | ClusterKind::Subclusters(host),
            ) => (host, geometry.cluster_size.bytes(), Role::Data),
            Ok(ClusterKind::Compressed(run)) => {
                // Whole sectors, from the one in which the first byte lies.
                let first = HostOffset::new(run.offset.get() & !511);
                (first, (run.additional_sectors + 1) * 512, Role::Compressed)
            }
            _ => return,
        };
        // A compressed cluster is never COPIED, whatever its count.
        let copied = (active && role == Role::Data).then_some(entry.copied());
        self.reference_copied(geometry, at, length, role, copied);
    }

    fn snapshots<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &Header,
    ) -> Result<(), MapError> {
        let geometry = &header.geometry;
        let mut at = header.snapshots_offset;
        for index in 0..header.snapshots {
            let mut fixed = [0; FIXED_BYTES];
            storage.read_at(at, &mut fixed)?;
            let entry = SnapshotEntry::parse(&fixed);
            if entry.extra_bytes > MAX_EXTRA_BYTES {
                let what = "more than 1024 bytes of extra data";
                return Err(MapError::Snapshot { index, what });
            }
            if entry.l1_offset.get() & geometry.cluster_size.mask() != 0 {
                let what = "the L1 table is not on a cluster boundary";
                return Err(MapError::Snapshot { index, what });
            }
            if entry.l1_entries > crate::qcow2::header::MAX_L1_ENTRIES {
                let what = "the L1 table has more than 4194304 entries";
                return Err(MapError::Snapshot { index, what });
            }
            self.l1(storage, geometry, entry.l1_offset, entry.l1_entries, false)?;
            at = at.saturating_add(entry.length_bytes());
        }
        let length = at.distance_from(header.snapshots_offset).unwrap_or(0);
        self.reference(geometry, header.snapshots_offset, length, Role::SnapshotTable);
        Ok(())
    }

    /// Reads the counts on disk, block by block.
    fn counts<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &Header,
    ) -> Result<(), MapError> {
        let geometry = &header.geometry;
        let table = header.refcount_table_offset;
        let clusters = u64::from(header.refcount_table_clusters);
        let length = geometry.cluster_size.saturating_bytes(clusters);
        self.reference(geometry, table, length, Role::RefcountTable);
        let until = table.saturating_add(length);
        let mut from = table;
        let mut piece = std::mem::take(&mut self.tables[0]);
        while from < until
            && let Some(data) = storage.next_data(from, until, &mut piece)?
        {
            from = data.offset.saturating_add(data.bytes.len() as u64);
            let skipped = data.offset.distance_from(table).unwrap_or(0) / 8;
            for (index, bytes) in (skipped..).zip(data.bytes.as_chunks::<8>().0) {
                if let Some(block) = refcount::block_offset(u64::from_be_bytes(*bytes)) {
                    let cluster = geometry.cluster_size.bytes();
                    // One that is not on a cluster boundary takes part of two clusters.
                    self.reference(geometry, block, cluster, Role::RefcountBlock);
                    self.block(storage, geometry, block, index)?;
                    self.check_bound()?;
                }
            }
        }
        self.tables[0] = piece;
        Ok(())
    }

    fn block<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        geometry: &Geometry,
        block: HostOffset,
        index: u64,
    ) -> Result<(), MapError> {
        let order = geometry.refcount_order;
        let first = index.saturating_mul(geometry.refcounts_per_block());
        let until = block.saturating_add(geometry.cluster_size.bytes());
        let mut from = block;
        let mut piece = std::mem::take(&mut self.tables[1]);
        while from < until
            && let Some(data) = storage.next_data(from, until, &mut piece)?
        {
            from = data.offset.saturating_add(data.bytes.len() as u64);
            let skipped = data.offset.distance_from(block).unwrap_or(0);
            let skipped = first.saturating_add((skipped * 8) >> order);
            refcount::for_each_run(data.bytes, order, |entry, entries, count| {
                self.count(skipped.saturating_add(entry), entries, count);
            });
        }
        self.tables[1] = piece;
        Ok(())
    }

    /// Between two tables: one alone, a refcount block of 2^24 counts, has a quarter of the bound.
    fn check_bound(&self) -> Result<(), MapError> {
        if self.references.len() > MAX_RECOUNTED {
            return Err(MapError::TooLarge("more than 2^26 references to clusters"));
        }
        if self.on_disk.len() > MAX_RECOUNTED {
            return Err(MapError::TooLarge("more than 2^26 runs of refcounts"));
        }
        Ok(())
    }

    #[inline]
    fn count(&mut self, first: u64, clusters: u64, count: u64) {
        let end = first.saturating_add(clusters);
        if let Some(last) = self.on_disk.last_mut()
            && last.end == first
            && last.count == count
        {
            last.end = end;
            return;
        }
        let role = Role::Header;
        self.on_disk.push(Counted { first, end, count, role });
    }

    /// Turns the sorted references into counts, and notes what overlaps.
    fn add_up(&mut self) {
        self.computed.clear();
        for at in 0..self.references.len() {
            self.add_reference(self.references[at]);
        }
    }

    /// Adds one reference. All before it begin no later: only the last runs can be touched.
    fn add_reference(&mut self, reference: Reference) {
        let Reference { mut first, end, role, .. } = reference;
        let touched = match self.computed.last() {
            Some(last) if last.end > first => {
                self.computed.partition_point(|counted| counted.end <= first)
            }
            _ => self.computed.len(),
        };
        let mut at = touched;
        while let Some(here) = self.computed.get(at).copied() {
            if first >= end {
                break;
            }
            if here.first < first {
                // What lies before the reference keeps its count.
                self.computed[at].end = first;
                self.computed.insert(at + 1, Counted { first, ..here });
                at += 1;
                continue;
            }
            let shared_end = here.end.min(end);
            if here.role != role || !role.shared() {
                self.reports.push(Report {
                    finding: Finding::Overlap,
                    cluster: HostCluster::new(first),
                    clusters: shared_end - first,
                    references: here.count + 1,
                    on_disk: 0,
                    role: Some(role),
                });
            }
            if shared_end < here.end {
                self.computed.insert(at + 1, Counted { first: shared_end, ..here });
            }
            self.computed[at].end = shared_end;
            self.computed[at].count += 1;
            first = shared_end;
            at += 1;
        }
        if first < end {
            self.computed.push(Counted { first, end, count: 1, role });
        }
    }

    /// Holds the computed counts against those on disk, and the COPIED flags against both.
    fn compare(&mut self) {
        let mut on_disk = self.on_disk.iter().copied().peekable();
        let mut cursor = 0u64;
        for here in &self.computed {
            // Counted, but not referenced.
            while let Some(counted) = on_disk.peek().copied() {
                let (first, end) = (counted.first.max(cursor), counted.end.min(here.first));
                if first < end {
                    self.reports.push(leak(first, end, counted.count));
                }
                if counted.end > here.first {
                    break;
                }
                on_disk.next();
            }
            cursor = here.first;
            while cursor < here.end {
                let counted = on_disk.peek().copied().filter(|counted| counted.first < here.end);
                let (end, count) = match counted {
                    Some(counted) if counted.first <= cursor => (counted.end, counted.count),
                    Some(counted) => (counted.first, 0),
                    None => (here.end, 0),
                };
                let end = end.min(here.end);
                if count != here.count {
                    let higher = count > here.count;
                    self.reports.push(Report {
                        finding: if higher { Finding::Leak } else { Finding::Corruption },
                        cluster: HostCluster::new(cursor),
                        clusters: end - cursor,
                        references: here.count,
                        on_disk: count,
                        role: Some(here.role),
                    });
                }
                cursor = end;
                if counted.is_some_and(|counted| counted.end <= cursor) {
                    on_disk.next();
                }
            }
        }
        for counted in on_disk {
            let first = counted.first.max(cursor);
            if first < counted.end {
                self.reports.push(leak(first, counted.end, counted.count));
            }
        }
        self.compare_copied();
    }

    fn compare_copied(&mut self) {
        let mut counted = self.on_disk.iter().peekable();
        for reference in &self.references {
            let Some(copied) = reference.copied else { continue };
            while counted.next_if(|counted| counted.end <= reference.first).is_some() {}
            let count = match counted.peek() {
                Some(counted) if counted.first <= reference.first => counted.count,
                _ => 0,
            };
            if copied != (count == 1) {
                self.reports.push(Report {
                    finding: Finding::Copied,
                    cluster: HostCluster::new(reference.first),
                    clusters: 1,
                    references: u64::from(copied),
                    on_disk: count,
                    role: Some(reference.role),
                });
            }
        }
    }
}

impl Default for Recount {
    fn default() -> Self {
        Self::new()
    }
}

fn leak(first: u64, end: u64, count: u64) -> Report {
    Report {
        finding: Finding::Leak,
        cluster: HostCluster::new(first),
        clusters: end - first,
        references: 0,
        on_disk: count,
        role: None,
    }
}
