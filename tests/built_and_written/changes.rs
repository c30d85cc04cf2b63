//! Random changes of an empty disk, as operations of a build and as requests to a writer.

use test_support::prelude::*;

/// The number of changes that are drawn. Some are not possible, and are left out. All together make fewer requests than
/// `Limits::WRITTEN` allows.
const DRAWN_CHANGES: usize = 24;
/// The most clusters of a disk: with the smallest clusters, several L2 tables map it.
const MAX_DISK_CLUSTERS: u64 = 300;
/// The most snapshots at a time.
const MAX_SNAPSHOTS: usize = 4;
/// The share of the bytes of all requests that writes may have, as `Limits::request_bytes` says.
const WRITTEN_SHARE: u64 = 16;
/// The first line of the requests: it asks for nothing, and the engine gets all operations behind it.
const BEGINS: &str = "write_at at=start+0 inside=0 length=0<<0\n";

/// A run of clusters. Its end may lie past the end of the disk.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    first: u64,
    clusters: u64,
}

/// A change of a disk.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Write(Run),
    /// The run reads as zeros. The build keeps its host clusters if the operand `keep` is `yes`.
    Zero(Run, &'static str),
    Discard(Run),
    /// The new size in clusters.
    Resize(u64),
    TakeSnapshot,
    /// The index of the snapshot.
    ApplySnapshot(usize),
    /// The index of the snapshot.
    DeleteSnapshot(usize),
}

/// An empty disk, and its changes. The `Debug` output is both programs.
pub struct Case {
    number: u64,
    version: u32,
    cluster_bits: u32,
    refcount_order: u32,
    features: &'static str,
    clusters: u64,
    /// The size of the disk above whole clusters, in bytes. The size of such a disk does not change, because the build
    /// and the requests treat the rest of the last cluster differently: requests have it read as zeros.
    tail_bytes: u64,
    /// The place of host clusters in the build.
    policy: &'static str,
    pub changes: Vec<Change>,
    /// Some change makes the disk smaller.
    pub gets_smaller: bool,
}

impl Case {
    /// Draws the case with a number. Any 56 cases in a row have every pair of a cluster size and a width of refcounts,
    /// except that version 2 has only one width.
    pub fn new(number: u64) -> Self {
        let mut entropy = Entropy::new(number);
        let version = if entropy.one_in(6) { 2 } else { 3 };
        let cluster_bits = 9 + (number % 8) as u32;
        let refcount_order = if version == 2 { 4 } else { (number % 7) as u32 };
        let features = ["none", "lazy_refcounts", "compression_field"][entropy.below(3) as usize];
        let most_clusters = [6, 40, MAX_DISK_CLUSTERS][entropy.below(3) as usize];
        let clusters = 1 + entropy.below(most_clusters);
        let sectors = (1 << (cluster_bits - 9)).min(32);
        let tail_bytes = if entropy.one_in(3) { 512 * entropy.below(sectors) } else { 0 };
        let policy = ["append", "first", "random", "mixed"][entropy.below(4) as usize];
        let mut case = Self {
            number,
            version,
            cluster_bits,
            refcount_order,
            features,
            clusters,
            tail_bytes,
            policy,
            changes: Vec::new(),
            gets_smaller: false,
        };
        let mut drawing = Drawing::new(&case, entropy);
        case.changes = (0..DRAWN_CHANGES).filter_map(|_| drawing.change()).collect();
        case.gets_smaller = drawing.gets_smaller;
        case
    }

    /// Returns the same case with subclusters, if its image may have them.
    pub fn with_subclusters(self) -> Self {
        Self { features: "extended_l2", ..self }
    }

    /// Returns the program whose build makes all changes.
    pub fn built(&self) -> Program {
        self.program(&format!("place policy={}\n", self.policy), |change| self.operation(change))
    }

    /// Returns the program that asks a writer to make all changes of an empty image.
    pub fn requested(&self) -> Program {
        self.program(BEGINS, |change| self.request(change))
    }

    fn program(&self, begins: &str, line: impl Fn(&Change) -> String) -> Program {
        let Self { version, cluster_bits, refcount_order, features, clusters, tail_bytes, .. } =
            self;
        // The engine would create the image of an odd seed.
        let rng_seed = 2 * (self.number % 1000);
        let policy = self.policy;
        let mut text = format!(
            "image version={version} cluster_bits={cluster_bits} refcount_order={refcount_order} \
             features={features} size={clusters}<<{cluster_bits}+{tail_bytes} rng_seed={rng_seed} \
             blocks={policy} table={policy} tolerance=0\n{begins}"
        );
        for change in &self.changes {
            text += &line(change);
            text += "\n";
        }
        assemble(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// Returns the operation of the build that makes a change.
    fn operation(&self, change: &Change) -> String {
        match change {
            Change::Write(run) => format!("write {run}"),
            // Version 2 has no zero clusters. Nothing lies below the image, so unallocated clusters read as zeros.
            Change::Zero(run, _) if self.version == 2 => format!("discard {run}"),
            Change::Zero(run, keep) => format!("zero {run} keep={keep}"),
            other => self.request(other),
        }
    }

    /// Returns the request that makes a change.
    fn request(&self, change: &Change) -> String {
        let bytes = |run: &Run| {
            // The operand has 8 bits for the units.
            let shift = self.cluster_bits.min(15);
            let units = run.clusters << (self.cluster_bits - shift);
            format!("at=start+{} inside=0 length={units}<<{shift}", run.first)
        };
        match change {
            Change::Write(run) => format!("write_at {}", bytes(run)),
            Change::Zero(run, _) => format!("zero_at {}", bytes(run)),
            Change::Discard(run) => format!("discard {run}"),
            Change::Resize(clusters) => format!("resize size={clusters}<<{}+0", self.cluster_bits),
            Change::TakeSnapshot => "snapshot".to_string(),
            Change::ApplySnapshot(index) => format!("apply_snapshot index={index}"),
            Change::DeleteSnapshot(index) => format!("delete_snapshot index={index}"),
        }
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "case {}\n{}\n{}", self.number, self.built(), self.requested())
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at=start+{} clusters={}", self.first, self.clusters)
    }
}

/// Draws changes, and keeps to the bounds on requests: a request past a bound would be cut, unlike the operation.
struct Drawing {
    entropy: Entropy,
    /// The size of the disk in clusters.
    clusters: u64,
    gets_smaller: bool,
    /// The sizes of the snapshots in clusters.
    snapshots: Vec<u64>,
    /// The number of snapshots that may still be taken. Each can add a reference to a cluster.
    takeable: u64,
    may_resize: bool,
    /// A version 2 image with a snapshot keeps its size.
    is_version_2: bool,
    /// The number of clusters that requests may still write.
    writable: u64,
    /// The number of clusters that requests may still write, zero, discard or add.
    changeable: u64,
    /// The clusters near which changes begin.
    spots: [u64; 2],
}

impl Drawing {
    fn new(case: &Case, mut entropy: Entropy) -> Self {
        let max_refcount = (1u64 << (1 << case.refcount_order).min(16)) - 1;
        let changeable = Limits::WRITTEN.request_bytes >> case.cluster_bits;
        let spots = [(); 2].map(|()| entropy.below(MAX_DISK_CLUSTERS));
        Self {
            entropy,
            clusters: case.clusters + u64::from(case.tail_bytes > 0),
            gets_smaller: false,
            snapshots: Vec::new(),
            // The disk has a reference, too, and another one while a snapshot is applied.
            takeable: max_refcount.saturating_sub(2),
            may_resize: case.tail_bytes == 0,
            is_version_2: case.version == 2,
            writable: changeable / WRITTEN_SHARE,
            changeable,
            spots,
        }
    }

    /// Draws a change. Returns `None` if it is not possible.
    fn change(&mut self) -> Option<Change> {
        match self.entropy.below(12) {
            0..=4 => {
                let run = self.run(self.writable)?;
                self.writable -= run.clusters.min(self.clusters - run.first);
                Some(Change::Write(run))
            }
            5 | 6 => {
                let keep = if self.entropy.one_in(2) { "yes" } else { "no" };
                Some(Change::Zero(self.run(u64::MAX)?, keep))
            }
            7 | 8 => Some(Change::Discard(self.run(u64::MAX)?)),
            9 => self.resize(),
            10 => self.take_snapshot(),
            _ => self.use_snapshot(),
        }
    }

    /// Draws a run of which at most `most` clusters lie on the disk.
    fn run(&mut self, most: u64) -> Option<Run> {
        let spot = self.spots[self.entropy.below(2) as usize];
        let first = (spot + self.entropy.below(8)) % self.clusters;
        let clusters = 1 + self.entropy.below(16);
        let changed = clusters.min(self.clusters - first);
        if changed > most.min(self.changeable) {
            return None;
        }
        self.changeable -= changed;
        Some(Run { first, clusters })
    }

    fn resize(&mut self) -> Option<Change> {
        let clusters = 1 + self.entropy.below(2 * self.clusters).min(MAX_DISK_CLUSTERS - 1);
        let added = clusters.saturating_sub(self.clusters);
        if !self.may_resize || clusters == self.clusters || added > self.changeable {
            return None;
        }
        self.changeable -= added;
        self.set_size(clusters);
        Some(Change::Resize(clusters))
    }

    fn take_snapshot(&mut self) -> Option<Change> {
        if self.snapshots.len() == MAX_SNAPSHOTS || self.takeable == 0 {
            return None;
        }
        self.takeable -= 1;
        self.may_resize &= !self.is_version_2;
        self.snapshots.push(self.clusters);
        Some(Change::TakeSnapshot)
    }

    /// Draws a change that applies or deletes a snapshot.
    fn use_snapshot(&mut self) -> Option<Change> {
        if self.snapshots.is_empty() {
            return None;
        }
        let index = self.entropy.below(self.snapshots.len() as u64) as usize;
        if self.entropy.one_in(2) {
            self.snapshots.remove(index);
            return Some(Change::DeleteSnapshot(index));
        }
        self.set_size(self.snapshots[index]);
        Some(Change::ApplySnapshot(index))
    }

    fn set_size(&mut self, clusters: u64) {
        self.gets_smaller |= clusters < self.clusters;
        self.clusters = clusters;
    }
}
