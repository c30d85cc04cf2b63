//! The references to the clusters of a file and their counts on disk, for files of any size. As in QEMU, the memory
//! depends on the number of clusters that have either, and not on the number of references: two bytes for each cluster
//! of most images.
//!
//! Neighbouring clusters share a page. A page with few clusters is a list, so that a damaged image with clusters far
//! apart takes little more memory than its entries.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::formats::qcow2::check::cluster_counts::Role;

/// The number of clusters in a page.
const PAGE_CLUSTERS: u64 = 1 << 10;
/// The largest number of clusters in a page that is a list.
const MAX_LISTED: usize = 32;
/// The number of bytes that the entry of a page takes beside its cells.
const PAGE_ENTRY_BYTES: u64 = 128;

/// The references of a cluster, and its count on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// The number of references.
    pub(super) references: u64,
    /// The count on disk.
    pub(super) on_disk: u64,
}

/// A reference to a cluster that has one of another structure already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overlap {
    /// The cluster.
    pub(super) cluster: u64,
    /// The structure of the later reference.
    pub(super) role: Role,
}

/// The structures that may reference a cluster more than once. Two bits of a cell name the structure of the first
/// reference.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// Any other structure, or none.
    Alone = 0,
    L2Table = 1,
    Data = 2,
    Compressed = 3,
}

impl Sharing {
    fn of(role: Role) -> Self {
        match role {
            Role::L2Table => Self::L2Table,
            Role::Data => Self::Data,
            Role::Compressed => Self::Compressed,
            _ => Self::Alone,
        }
    }
}

/// The number of bits of a cell that hold a [`Sharing`]. The number of references is in the bits above.
const SHARING_BITS: u32 = 2;

/// The references of a cluster with their [`Sharing`], and its count on disk.
type Cell = [u64; 2];

fn counted([references, on_disk]: Cell) -> Counted {
    Counted { references: references >> SHARING_BITS, on_disk }
}

/// The cells of a page, in the narrowest form that holds them.
#[derive(Debug)]
enum Cells {
    /// The cells that are not zero, in the order of their indices.
    Listed(Vec<(u16, Cell)>),
    Bytes(Box<[[u8; 2]]>),
    Halves(Box<[[u16; 2]]>),
    Words(Box<[Cell]>),
}

impl Cells {
    fn get(&self, index: usize) -> Cell {
        match self {
            Self::Listed(cells) => match cells.binary_search_by_key(&index, |it| it.0.into()) {
                Ok(at) => cells[at].1,
                Err(_) => [0; 2],
            },
            Self::Bytes(cells) => cells[index].map(u64::from),
            Self::Halves(cells) => cells[index].map(u64::from),
            Self::Words(cells) => cells[index],
        }
    }

    /// Stores a cell. Returns the number of bytes by which the page grew.
    #[inline]
    fn set(&mut self, index: usize, cell: Cell) -> u64 {
        // Most pages have this form.
        if let Self::Bytes(cells) = self
            && store(&mut cells[index], cell)
        {
            return 0;
        }
        let before = self.bytes();
        while !self.store(index, cell) {
            *self = self.widened();
        }
        self.bytes() - before
    }

    /// Stores a cell. Returns false if it needs a wider form.
    fn store(&mut self, index: usize, cell: Cell) -> bool {
        match self {
            Self::Listed(cells) => match cells.binary_search_by_key(&index, |it| it.0.into()) {
                Ok(at) => cells[at].1 = cell,
                Err(at) if cells.len() < MAX_LISTED => cells.insert(at, (index as u16, cell)),
                Err(_) => return false,
            },
            Self::Bytes(cells) => return store(&mut cells[index], cell),
            Self::Halves(cells) => return store(&mut cells[index], cell),
            Self::Words(cells) => cells[index] = cell,
        }
        true
    }

    /// Returns the same cells in the next wider form.
    fn widened(&self) -> Self {
        let clusters = PAGE_CLUSTERS as usize;
        let mut wider = match self {
            Self::Listed(_) => Self::Bytes(vec![[0; 2]; clusters].into()),
            Self::Bytes(_) => Self::Halves(vec![[0; 2]; clusters].into()),
            Self::Halves(_) | Self::Words(_) => Self::Words(vec![[0; 2]; clusters].into()),
        };
        self.each(|index, cell| {
            wider.set(index, cell);
        });
        wider
    }

    /// Calls `take` with each cell that is not zero, in order.
    fn each(&self, mut take: impl FnMut(usize, Cell)) {
        let mut dense = |index, cell| {
            if cell != [0; 2] {
                take(index, cell);
            }
        };
        match self {
            Self::Listed(cells) => {
                cells.iter().for_each(|(index, cell)| dense((*index).into(), *cell))
            }
            Self::Bytes(cells) => {
                cells
                    .iter()
                    .enumerate()
                    .for_each(|(index, cell)| dense(index, cell.map(u64::from)));
            }
            Self::Halves(cells) => {
                cells
                    .iter()
                    .enumerate()
                    .for_each(|(index, cell)| dense(index, cell.map(u64::from)));
            }
            Self::Words(cells) => {
                cells.iter().enumerate().for_each(|(index, cell)| dense(index, *cell))
            }
        }
    }

    /// Returns the number of bytes that the cells take.
    fn bytes(&self) -> u64 {
        (match self {
            Self::Listed(cells) => cells.capacity() * size_of::<(u16, Cell)>(),
            Self::Bytes(cells) => size_of_val::<[_]>(cells),
            Self::Halves(cells) => size_of_val::<[_]>(cells),
            Self::Words(cells) => size_of_val::<[_]>(cells),
        }) as u64
    }
}

/// Stores a cell, and returns true if it fits.
#[inline]
fn store<T: TryFrom<u64>>(into: &mut [T; 2], [references, on_disk]: Cell) -> bool {
    match (T::try_from(references), T::try_from(on_disk)) {
        (Ok(references), Ok(on_disk)) => {
            *into = [references, on_disk];
            true
        }
        _ => false,
    }
}

/// The references to clusters, and their counts on disk.
#[derive(Debug, Default)]
pub(super) struct PagedCounts {
    /// The place of each page in `pages`, by its number.
    places: BTreeMap<u64, usize>,
    pages: Vec<Cells>,
    /// The number and the place of the page that was used last.
    last: Option<(u64, usize)>,
    overlaps: Vec<Overlap>,
    references: u64,
    page_bytes: u64,
}

impl PagedCounts {
    /// Returns the place of the page that holds `cluster`.
    #[inline]
    fn place(&mut self, cluster: u64) -> usize {
        let number = cluster / PAGE_CLUSTERS;
        match self.last {
            Some((last, place)) if last == number => place,
            _ => self.find_place(number),
        }
    }

    fn find_place(&mut self, number: u64) -> usize {
        let Self { places, pages, page_bytes, .. } = self;
        let place = *places.entry(number).or_insert_with(|| {
            *page_bytes += PAGE_ENTRY_BYTES;
            pages.push(Cells::Listed(Vec::new()));
            pages.len() - 1
        });
        self.last = Some((number, place));
        place
    }

    /// Changes the cells of `clusters`, each by `change`.
    #[inline]
    fn change(&mut self, clusters: Range<u64>, mut change: impl FnMut(u64, Cell) -> Cell) {
        for cluster in clusters {
            let place = self.place(cluster);
            let (page, index) = (&mut self.pages[place], (cluster % PAGE_CLUSTERS) as usize);
            self.page_bytes += page.set(index, change(cluster, page.get(index)));
        }
    }

    /// Adds a reference to each of `clusters`.
    ///
    /// # Arithmetic
    /// [`PagedCounts::total_references`] is bounded, and a number of references has 62 bits.
    #[inline]
    pub(super) fn reference(&mut self, clusters: Range<u64>, role: Role) {
        self.references = self.references.saturating_add(clusters.end - clusters.start);
        let sharing = Sharing::of(role);
        let mut overlaps = std::mem::take(&mut self.overlaps);
        self.change(clusters, |cluster, [references, on_disk]| {
            if references == 0 {
                return [1 << SHARING_BITS | sharing as u64, on_disk];
            }
            let first = references & ((1 << SHARING_BITS) - 1);
            if sharing == Sharing::Alone || first != sharing as u64 {
                overlaps.push(Overlap { cluster, role });
            }
            [references + (1 << SHARING_BITS), on_disk]
        });
        self.overlaps = overlaps;
    }

    /// Stores the count on disk of each of `clusters`.
    #[inline]
    pub(super) fn count(&mut self, clusters: Range<u64>, count: u64) {
        self.change(clusters, |_, [references, _]| [references, count]);
    }

    /// Returns the references and the count of a cluster.
    pub(super) fn at(&mut self, cluster: u64) -> Counted {
        let number = cluster / PAGE_CLUSTERS;
        let place = match self.last {
            Some((last, place)) if last == number => place,
            _ => match self.places.get(&number) {
                Some(place) => *place,
                None => return Counted::default(),
            },
        };
        self.last = Some((number, place));
        counted(self.pages[place].get((cluster % PAGE_CLUSTERS) as usize))
    }

    /// Calls `take` with each run of clusters that have the same references and the same count, in the order of the
    /// file. It leaves out clusters that have neither.
    ///
    /// # Errors
    /// `take` returns an error.
    pub(super) fn each_run<E>(
        &self,
        mut take: impl FnMut(Range<u64>, Counted) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut runs: Vec<(Range<u64>, Counted)> = Vec::new();
        for (number, place) in &self.places {
            self.pages[*place].each(|index, cell| {
                let (cluster, cell) = (number * PAGE_CLUSTERS + index as u64, counted(cell));
                match runs.last_mut() {
                    Some((run, last)) if run.end == cluster && *last == cell => run.end += 1,
                    _ => runs.push((cluster..cluster + 1, cell)),
                }
            });
            // The last run may go on in the next page.
            let all = runs.len().saturating_sub(1);
            runs.drain(..all).try_for_each(|(run, counted)| take(run, counted))?;
        }
        runs.into_iter().try_for_each(|(run, counted)| take(run, counted))
    }

    /// Takes the references to clusters that had one of another structure, in the order of the clusters.
    pub(super) fn take_overlaps(&mut self) -> Vec<Overlap> {
        let mut overlaps = std::mem::take(&mut self.overlaps);
        overlaps.sort_by_key(|overlap| overlap.cluster);
        overlaps
    }

    /// Returns the number of references. A structure counts for each of its clusters.
    pub(super) fn total_references(&self) -> u64 {
        self.references
    }

    /// Returns the number of bytes that all of it takes.
    pub(super) fn kept_bytes(&self) -> u64 {
        let overlaps = (self.overlaps.capacity() * size_of::<Overlap>()) as u64;
        self.page_bytes.saturating_add(overlaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all runs: the clusters, the references and the count.
    fn runs(counts: &PagedCounts) -> Vec<(Range<u64>, u64, u64)> {
        let mut runs = Vec::new();
        let all = counts.each_run(|run, Counted { references, on_disk }| {
            runs.push((run, references, on_disk));
            Ok::<_, ()>(())
        });
        assert_eq!(all, Ok(()));
        runs
    }

    #[test]
    fn a_run_crosses_pages_and_forms_of_pages() {
        let mut counts = PagedCounts::default();
        // The first page holds a list, the second all of its clusters.
        counts.reference(1020..2048, Role::Data);
        counts.reference(1 << 50..(1 << 50) + 1, Role::Data);
        counts.count(1020..2000, 1);
        counts.count(2040..2050, 3);
        let far = 1 << 50..(1 << 50) + 1;
        assert_eq!(
            runs(&counts),
            [
                (1020..2000, 1, 1),
                (2000..2040, 1, 0),
                (2040..2048, 1, 3),
                (2048..2050, 0, 3),
                (far, 1, 0)
            ]
        );
        assert_eq!(counts.at(1019), Counted::default());
        assert_eq!(counts.at(1 << 40), Counted::default());
        assert_eq!(counts.at(2040), Counted { references: 1, on_disk: 3 });
    }

    #[test]
    fn counts_of_any_size_are_exact() {
        for on_disk in [1, 255, 256, 65_535, 65_536, u64::MAX] {
            for references in [1, 63, 64, 16_383, 16_384, 70_000] {
                for clusters in [1, 100] {
                    let mut counts = PagedCounts::default();
                    counts.count(7..7 + clusters, on_disk);
                    (0..references).for_each(|_| counts.reference(8..9, Role::Data));
                    let at = counts.at(8);
                    let expected = if clusters > 1 { on_disk } else { 0 };
                    assert_eq!(at, Counted { references, on_disk: expected });
                    assert_eq!(counts.at(7), Counted { references: 0, on_disk });
                    assert_eq!(counts.total_references(), references);
                }
            }
        }
    }

    #[test]
    fn only_equal_structures_share_a_cluster() {
        let overlap = |cluster, role| Overlap { cluster, role };
        for (first, second, is_overlap) in [
            (Role::Data, Role::Data, false),
            (Role::Compressed, Role::Compressed, false),
            (Role::L2Table, Role::L2Table, false),
            (Role::Data, Role::Compressed, true),
            (Role::L2Table, Role::Data, true),
            (Role::L1Table, Role::L1Table, true),
            (Role::Header, Role::L2Table, true),
        ] {
            let mut counts = PagedCounts::default();
            counts.reference(4..6, first);
            counts.reference(3..5, second);
            let expected = if is_overlap { vec![overlap(4, second)] } else { vec![] };
            assert_eq!(counts.take_overlaps(), expected);
        }
        let mut counts = PagedCounts::default();
        counts.reference(0..9, Role::Header);
        for cluster in [8, 2, 4] {
            counts.reference(cluster..cluster + 1, Role::Data);
        }
        let sorted: Vec<u64> = counts.take_overlaps().iter().map(|it| it.cluster).collect();
        assert_eq!(sorted, [2, 4, 8]);
    }

    #[test]
    fn memory_follows_the_clusters() {
        let mut counts = PagedCounts::default();
        let clusters = 64 * PAGE_CLUSTERS;
        counts.reference(0..clusters, Role::Data);
        counts.count(0..clusters, 1);
        assert!(counts.kept_bytes() <= clusters * 2 + 64 * PAGE_ENTRY_BYTES);
        // More references to the same clusters take no more.
        let before = counts.kept_bytes();
        (0..50).for_each(|_| counts.reference(0..clusters, Role::Data));
        assert_eq!(counts.kept_bytes(), before);
        // Clusters far apart are lists.
        let mut far = PagedCounts::default();
        for page in 0..1000 {
            far.reference(page << 40..(page << 40) + 1, Role::Data);
        }
        assert!(far.kept_bytes() < 1000 * 300, "{} bytes", far.kept_bytes());
    }
}
