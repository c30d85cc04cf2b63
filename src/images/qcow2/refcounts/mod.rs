//! Refcount blocks and the refcount table. The allocator uses the iterative algorithm for self-referencing structures
//! (QEMU `docs/devel/image-fuzzer`, "Fuzzing of self-referencing structures"), here as a true fixpoint.
//!
//! Every allocated cluster needs a count in a block, and blocks and the table are clusters themselves. So the
//! allocator makes blocks for all clusters. A new block may need another block for its own count; this repeats until
//! none is missing. Then the allocator places a run of adjacent clusters for the table, with a tolerance for growth.
//! Its clusters may need new blocks, and these may need a longer table. The table grows into its tolerance or, if
//! that is used up, moves to a longer run.
//!
//! Blocks that count nothing are made like the others, before the table.
//!
//! The algorithm ends, for these reasons. Each index gets at most one block. The table first gets its necessary length,
//! and grows in place while the clusters after it are free. If they are not, it moves, with room for a sixteenth more.
//! If it moves to the end of the file, the file grows by little more than the table itself, and the table grows by the
//! clusters that count this growth. A table cluster counts at least 64 × 64 clusters (512-byte clusters, 64-bit
//! counts), so this is less than the extra room; spare clusters only add a constant. (Without the extra room, a table
//! of 4,096 clusters needs a longer one wherever it moves.) Unnecessary clusters are freed at the end.

pub mod out_of_date;

use crate::base::limits::{MAX_TABLE_ROUNDS, MAX_TABLE_TOLERANCE};
use crate::disk::clusters::HostCluster;
use crate::disk::observer::{Event, Observer, Rare, State, Vital};
use crate::disk::offsets::HostOffset;
use crate::disk::storage::GRAIN_BYTES;
use crate::formats::qcow2::constants::MAX_REFCOUNT_TABLE_BYTES;
use crate::formats::qcow2::geometry::Geometry;
use crate::images::files::image::Image;

use super::encoding::{Sizes, put_run};
use super::placement::clusters::ClusterRun;
use super::placement::{Placement, Policy};
use super::tables;

/// The placement of the refcount structures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefcountPlacement {
    /// The policy for blocks.
    pub blocks: Policy,
    /// The policy for the table.
    pub table: Policy,
    /// The number of free clusters that the table wants after it, 0 to `MAX_TABLE_TOLERANCE`.
    pub tolerance: u64,
    /// The number of clusters by which the table is longer than necessary, up to the longest table that QEMU opens.
    pub spare: u64,
    /// The blocks that the image has although they count nothing.
    pub spare_blocks: SpareBlocks,
}

/// Refcount blocks without a cluster to count: entries of the refcount table that would be 0 otherwise. If the
/// allocator later puts another block or a cluster of the table into the range of such a block, the block counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpareBlocks {
    /// The number of blocks.
    pub blocks: u64,
    /// The number of empty entries of the table before the first spare block.
    pub distance: u64,
}

/// The location of an image's refcount structures.
#[derive(Debug, Default)]
pub struct RefcountStructures {
    /// Block index and host cluster, sorted by index.
    blocks: Vec<(u64, u64)>,
    /// The indices of blocks that may be missing.
    pending: Vec<u64>,
    table_first: u64,
    table_clusters: u64,
}

/// The number of entries of the longest refcount table that QEMU opens.
const MAX_REFCOUNT_TABLE_ENTRIES: u64 = MAX_REFCOUNT_TABLE_BYTES / 8;

impl RefcountStructures {
    /// Allocates blocks and table for all clusters of `placement`, and for themselves. `placement` must have no
    /// limit, because no image can do without them.
    pub fn allocate(
        &mut self,
        placement: &mut Placement,
        geometry: &Geometry,
        wanted: RefcountPlacement,
        observer: &dyn Observer,
    ) {
        observer.begin(State::AllocateBlocks);
        self.blocks.clear();
        let per_block = geometry.refcounts_per_block();
        for run in placement.clusters.runs() {
            self.pending.extend(run.first / per_block..=(run.end - 1) / per_block);
        }
        // Indices are popped from the back, because blocks are inserted in order.
        self.pending.dedup();
        self.pending.reverse();
        self.allocate_blocks(placement, per_block, wanted.blocks, observer);
        if wanted.spare_blocks.blocks > 0 {
            self.add_spare_blocks(wanted.spare_blocks);
            self.allocate_blocks(placement, per_block, wanted.blocks, observer);
        }
        self.allocate_table(placement, geometry, wanted, observer);
    }

    /// Makes blocks pending that count nothing, as far as the longest table that QEMU opens has entries.
    fn add_spare_blocks(&mut self, wanted: SpareBlocks) {
        let SpareBlocks { blocks: mut left, distance: mut skipped } = wanted;
        let mut first = 0;
        let ends = self.blocks.iter().map(|(index, _)| *index).chain([MAX_REFCOUNT_TABLE_ENTRIES]);
        for end in ends {
            // The entries from `first` to `end` have no block. `first` is past the end if the table is longer than
            // QEMU opens.
            let free = end.saturating_sub(first);
            let start = first + skipped.min(free);
            let taken = left.min(free - (start - first));
            self.pending.extend(start..start + taken);
            (left, skipped, first) = (left - taken, skipped.saturating_sub(free), end + 1);
        }
        self.pending.reverse();
    }

    /// Makes every pending block, and the blocks that new blocks need.
    fn allocate_blocks(
        &mut self,
        placement: &mut Placement,
        per_block: u64,
        policy: Policy,
        observer: &dyn Observer,
    ) {
        let mut round = 0;
        while let Some(index) = self.pending.pop() {
            let at = match self.blocks.last() {
                Some((last, _)) if *last < index => self.blocks.len(),
                _ => match self.blocks.binary_search_by_key(&index, |(index, _)| *index) {
                    Ok(_) => {
                        round = 0;
                        observer.event(State::AllocateBlocks, Event::Counted);
                        continue;
                    }
                    Err(at) => at,
                },
            };
            let before = placement.tally();
            let Some(cluster) = placement.allocate(1, policy) else {
                return;
            };
            self.blocks.insert(at, (index, cluster));
            self.pending.push(cluster / per_block);
            round += 1;
            observer.event(State::AllocateBlocks, Event::Block);
            placement.tally().report(&before, State::AllocateBlocks, observer);
            observer.vital(Vital::BlockRounds, round);
            if cluster / per_block == index {
                observer.event(State::AllocateBlocks, Event::CountsItself);
                if index > 0 {
                    observer.rare(Rare::BlockCountsItself);
                }
            }
            if round > 2 {
                observer.rare(Rare::ManyRounds);
            }
        }
    }

    fn allocate_table(
        &mut self,
        placement: &mut Placement,
        geometry: &Geometry,
        wanted: RefcountPlacement,
        observer: &dyn Observer,
    ) {
        observer.begin(State::AllocateTable);
        let tolerance = wanted.tolerance.min(MAX_TABLE_TOLERANCE);
        for round in 0..MAX_TABLE_ROUNDS {
            let needed = self.wanted_table_clusters(geometry, wanted);
            let clusters = needed + if round == 0 { 0 } else { needed / 16 + 1 };
            let before = placement.tally();
            let first = placement.allocate_with_tolerance(clusters, tolerance, wanted.table);
            let Some(first) = first else { return };
            observer.event(State::AllocateTable, Event::Table);
            placement.tally().report(&before, State::AllocateTable, observer);
            (self.table_first, self.table_clusters) = (first, clusters);
            let run = first..first + clusters;
            self.count_clusters(placement, geometry, wanted.blocks, run, observer);
            if self.extend_table(placement, geometry, wanted, observer) {
                self.trim_table(placement, geometry, wanted, observer);
                if self.table_clusters > 1 {
                    observer.rare(Rare::LongTable);
                }
                return;
            }
            observer.event(State::AllocateTable, Event::Moved);
            observer.rare(Rare::TableMoved);
            placement.clusters.free(self.table_first, self.table_clusters);
        }
        unreachable!("the refcount table does not converge");
    }

    /// Extends the table cluster by cluster to its wanted length. Returns false if the next cluster is allocated.
    fn extend_table(
        &mut self,
        placement: &mut Placement,
        geometry: &Geometry,
        wanted: RefcountPlacement,
        observer: &dyn Observer,
    ) -> bool {
        while self.wanted_table_clusters(geometry, wanted) > self.table_clusters {
            let next = self.table_first + self.table_clusters;
            if !placement.clusters.is_free(next, 1) {
                return false;
            }
            placement.clusters.allocate(next, 1);
            self.table_clusters += 1;
            observer.event(State::AllocateTable, Event::Extended);
            observer.rare(Rare::TableExtended);
            self.count_clusters(placement, geometry, wanted.blocks, next..next + 1, observer);
        }
        true
    }

    /// Frees the clusters that the table does not need.
    fn trim_table(
        &mut self,
        placement: &mut Placement,
        geometry: &Geometry,
        wanted: RefcountPlacement,
        observer: &dyn Observer,
    ) {
        let needed = self.wanted_table_clusters(geometry, wanted);
        if needed < self.table_clusters {
            observer.event(State::AllocateTable, Event::Trimmed);
            observer.rare(Rare::TableTrimmed);
            placement.clusters.free(self.table_first + needed, self.table_clusters - needed);
            self.table_clusters = needed;
        }
    }

    fn count_clusters(
        &mut self,
        placement: &mut Placement,
        geometry: &Geometry,
        policy: Policy,
        clusters: std::ops::Range<u64>,
        observer: &dyn Observer,
    ) {
        let per_block = geometry.refcounts_per_block();
        let before = self.blocks.len();
        self.pending.extend(clusters.start / per_block..=(clusters.end - 1) / per_block);
        self.allocate_blocks(placement, per_block, policy, observer);
        if self.blocks.len() > before {
            observer.event(State::AllocateTable, Event::Block);
            observer.rare(Rare::TableNeedsBlock);
        }
    }

    /// Returns the table's length: enough for all blocks, and the spare clusters, up to the longest table that QEMU
    /// opens.
    fn wanted_table_clusters(&self, geometry: &Geometry, wanted: RefcountPlacement) -> u64 {
        let entries = self.blocks.last().map_or(1, |(index, _)| index + 1);
        let needed = geometry.cluster_size.clusters_for(entries * 8);
        let most = MAX_REFCOUNT_TABLE_BYTES / geometry.cluster_size.bytes();
        needed.max(most.min(needed + wanted.spare))
    }

    /// Returns the number of blocks.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the first cluster of the table, and the number of its clusters.
    pub fn table(&self) -> (HostCluster, u64) {
        (HostCluster::new(self.table_first), self.table_clusters)
    }

    /// Writes the table and the blocks.
    pub fn serialise(&self, image: &mut Image, geometry: &Geometry, runs: &[ClusterRun]) {
        self.serialise_table(image, geometry);
        let per_block = geometry.refcounts_per_block();
        let mut runs = runs;
        for (index, host) in &self.blocks {
            let host = geometry.cluster_size.host_offset(HostCluster::new(*host));
            let (first, end) = (index * per_block, (index + 1) * per_block);
            let skipped = runs.partition_point(|run| run.end <= first);
            runs = &runs[skipped..];
            serialise_block(image, geometry, host, first..end, runs);
        }
    }

    fn serialise_table(&self, image: &mut Image, geometry: &Geometry) {
        let table = geometry.cluster_size.host_offset(HostCluster::new(self.table_first));
        tables::write_sparse(image, table, &self.blocks, |host| {
            geometry.cluster_size.host_offset(HostCluster::new(host)).get()
        });
    }
}

/// Pieces of a block that are nearer than this are written as one.
const JOIN_BYTES: u64 = 64;

/// Writes the counts of `clusters` into the block at `host`. `runs` begins with the first run that ends past the
/// block's first cluster.
fn serialise_block(
    image: &mut Image,
    geometry: &Geometry,
    host: HostOffset,
    clusters: std::ops::Range<u64>,
    runs: &[ClusterRun],
) {
    let order = geometry.refcount_order;
    let inside = |run: &ClusterRun| run.first.max(clusters.start)..run.end.min(clusters.end);
    let piece = |run: &ClusterRun| {
        let range = inside(run);
        let bits = (range.start - clusters.start) << order..(range.end - clusters.start) << order;
        bits.start / 8 / GRAIN_BYTES * GRAIN_BYTES
            ..bits.end.div_ceil(8).next_multiple_of(GRAIN_BYTES)
    };
    let mut left = runs;
    while let Some(first) = left.first().filter(|run| run.first < clusters.end) {
        let mut bytes = piece(first);
        let mut group = 1;
        while let Some(next) = left.get(group).filter(|run| run.first < clusters.end)
            && piece(next).start <= bytes.end + JOIN_BYTES
        {
            bytes.end = piece(next).end;
            group += 1;
        }
        let content = image.place(host + bytes.start, (bytes.end - bytes.start) as usize);
        let first_entry = (bytes.start * 8) >> order;
        for run in &left[..group] {
            let range = inside(run);
            let index = |cluster: u64| (cluster - clusters.start - first_entry) as usize;
            let entries = index(range.start)..index(range.end);
            put_run(content, order, entries, run.references);
        }
        left = &left[group..];
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::clusters::ClusterSize;
    use crate::disk::storage::Storage;
    use crate::formats::qcow2::entry;
    use crate::formats::qcow2::geometry::{Compression, Version};
    use crate::images::content::entropy::Entropy;

    use super::*;

    fn geometry(bits: u32, refcount_order: u32) -> Geometry {
        Geometry {
            version: Version::V3,
            cluster_size: ClusterSize::from_bits(bits).unwrap(),
            refcount_order,
            extended_l2: false,
            compression: Compression::Deflate,
            data_file: false,
        }
    }

    /// Asserts that every count on disk is the allocator's, and that every cluster of the structures has a count.
    fn assert_counted(refcounts: &RefcountStructures, placement: &Placement, geometry: &Geometry) {
        let mut image = Image::default();
        refcounts.serialise(&mut image, geometry, placement.clusters.runs());
        image.seal(0);
        let on_disk = |cluster: u64| {
            let (table, clusters) = refcounts.table();
            let index = cluster / geometry.refcounts_per_block();
            if index >= clusters * geometry.cluster_size.bytes() / 8 {
                return 0;
            }
            let mut entry = [0; 8];
            let table = geometry.cluster_size.host_offset(table);
            image.read_at(table.checked_add(index * 8).unwrap(), &mut entry).unwrap();
            let Some(block) = entry::refcount_block_offset(u64::from_be_bytes(entry)) else {
                return 0;
            };
            let mut bytes = vec![0; geometry.cluster_size.bytes_usize()];
            image.read_at(block, &mut bytes).unwrap();
            let inside = (cluster % geometry.refcounts_per_block()) as usize;
            entry::refcount_at(&bytes, geometry.refcount_order, inside).unwrap()
        };
        for run in placement.clusters.runs() {
            for cluster in [run.first, (run.first + run.end) / 2, run.end - 1] {
                assert_eq!(on_disk(cluster), run.references, "cluster {cluster}");
            }
            assert_eq!(on_disk(run.end), placement.clusters.references(run.end));
        }
        for (index, host) in &refcounts.blocks {
            assert_eq!(placement.clusters.references(*host), 1, "block {index}");
        }
        let (table, clusters) = refcounts.table();
        assert!((0..clusters).all(|n| placement.clusters.references(table.get() + n) == 1));
    }

    #[test]
    fn every_allocated_cluster_is_counted_once_wherever_things_lie() {
        let mut entropy = Entropy::new(11);
        let policies = [Policy::Append, Policy::FirstHole, Policy::RandomHole, Policy::Mixed];
        let mut refcounts = RefcountStructures::default();
        for round in 0..400 {
            let bits = [9, 10, 12, 16][round % 4];
            let geometry = geometry(bits, entropy.below(7) as u32);
            let mut placement = Placement::default();
            placement.reset(round as u64, u64::MAX);
            placement.allocate(1, Policy::Append);
            for _ in 0..entropy.below(20) {
                let magnitude = entropy.below(14);
                placement.leave_gap(entropy.below(1 << magnitude));
                placement.allocate(1 + entropy.below(100), Policy::Append);
            }
            let magnitude = entropy.below(17);
            let wanted = RefcountPlacement {
                blocks: policies[entropy.below(4) as usize],
                table: policies[entropy.below(4) as usize],
                tolerance: entropy.below(4),
                spare: entropy.below(4),
                spare_blocks: SpareBlocks {
                    blocks: entropy.below(2) * entropy.below(17),
                    distance: entropy.below(1 << magnitude),
                },
            };
            refcounts.allocate(&mut placement, &geometry, wanted, &());
            assert_counted(&refcounts, &placement, &geometry);
        }
    }

    #[test]
    fn blocks_that_count_nothing_have_entries_of_their_own() {
        // A block has 256 counts. The clusters of the image lie in the ranges of blocks 0 and 3.
        let geometry = geometry(9, 4);
        let counting = |blocks, distance| {
            let mut placement = Placement::default();
            placement.reset(0, u64::MAX);
            placement.allocate(100, Policy::Append);
            placement.leave_gap(668);
            placement.allocate(1, Policy::Append);
            let spare_blocks = SpareBlocks { blocks, distance };
            let wanted = RefcountPlacement { spare_blocks, ..RefcountPlacement::default() };
            let mut refcounts = RefcountStructures::default();
            refcounts.allocate(&mut placement, &geometry, wanted, &());
            assert_counted(&refcounts, &placement, &geometry);
            let counts = |index: u64| {
                let mut runs = placement.clusters.runs().iter();
                runs.any(|run| run.first < (index + 1) * 256 && run.end > index * 256)
            };
            let indices = refcounts.blocks.iter().map(|(index, _)| *index);
            let empty: Vec<u64> = indices.filter(|index| !counts(*index)).collect();
            (empty, refcounts.table().1)
        };
        assert_eq!(counting(0, 0), (vec![], 1));
        assert_eq!(counting(1, 0), (vec![1], 1));
        assert_eq!(counting(4, 1), (vec![2, 4, 5, 6], 1));
        // Each cluster of the table has 64 entries.
        assert_eq!(counting(2, 700), (vec![702, 703], 11));
        let last = MAX_REFCOUNT_TABLE_ENTRIES - 1;
        assert_eq!(counting(9, last - 2), (vec![last], 16_384));
        assert_eq!(counting(9, u64::MAX), (vec![], 1));
    }

    #[test]
    fn a_table_of_thousands_of_clusters_comes_to_rest() {
        // A fuzzer found this: at the end of the file, such a table needs a longer one after every move.
        let geometry = geometry(9, 6);
        let mut refcounts = RefcountStructures::default();
        for policy in [Policy::Append, Policy::FirstHole, Policy::RandomHole, Policy::Mixed] {
            let mut placement = Placement::default();
            placement.reset(0, u64::MAX / 4);
            placement.allocate(20, Policy::Append);
            placement.leave_gap(40_000_000);
            placement.allocate(1, Policy::Append);
            let wanted = RefcountPlacement {
                blocks: policy,
                table: policy,
                tolerance: 1,
                spare: 15,
                ..RefcountPlacement::default()
            };
            placement.lift_limit();
            refcounts.allocate(&mut placement, &geometry, wanted, &());
            assert_counted(&refcounts, &placement, &geometry);
            assert!(refcounts.table().1 > 4096);
        }
    }

    #[test]
    fn the_table_grows_any_number_of_times() {
        // A block has 64 counts, and a table cluster 64 blocks. Everything is full, so the table's own blocks make it
        // longer.
        let geometry = geometry(9, 6);
        let mut refcounts = RefcountStructures::default();
        for clusters in [1, 63, 64, 4_031, 4_032, 4_096, 100_000, 1_000_000] {
            let mut placement = Placement::default();
            placement.reset(0, u64::MAX);
            placement.allocate(clusters, Policy::Append);
            let wanted = RefcountPlacement::default();
            refcounts.allocate(&mut placement, &geometry, wanted, &());
            assert_counted(&refcounts, &placement, &geometry);
            let counted = refcounts.table().1 * 64 * 64;
            assert!(counted >= placement.clusters.end());
        }
    }
}
