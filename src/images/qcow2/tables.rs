//! The L2 tables of an image that is being built, in pages of sixteen entries. Pages without a change take no memory.
//! Also the bytes of tables of 64-bit entries, most of which are empty.

use crate::disk::clusters::{HostCluster, SUBCLUSTERS};
use crate::disk::offsets::HostOffset;
use crate::images::content::WriteNumber;
use crate::images::files::image::Image;

use super::encoding::Subclusters;

/// Entries in a page.
pub const PAGE_ENTRIES: u64 = 16;

/// One L2 table of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableId(u32);

/// The mapping of a guest cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterMapping {
    /// No mapping.
    #[default]
    Unallocated,
    /// Zeros, with a host cluster if the allocation was kept. Not under extended L2.
    Zero(Option<HostOffset>),
    /// A cluster of data. Not under extended L2.
    Normal(HostOffset, WriteNumber),
    /// A compressed cluster.
    Compressed(Compressed),
    /// Extended L2: with or without a host cluster, and with a bitmap.
    Extended(Extended),
}

/// A compressed cluster: its location and its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compressed {
    /// The host offset of the payload.
    pub offset: HostOffset,
    /// The length that the descriptor claims.
    pub length_bytes: u32,
    /// The number of the write.
    pub write: WriteNumber,
    /// The content and the coding.
    pub kind: super::payload::PayloadKind,
    /// The index of the payload in the builder's list, if the program has given it.
    pub given: Option<u16>,
}

/// An entry of an extended L2 table that is not compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// The host cluster, if any.
    pub host: Option<HostOffset>,
    /// The states of the subclusters.
    pub bitmap: Subclusters,
    /// The write of each subcluster. It has a meaning only if there is a `host`.
    pub writes: WritesId,
}

/// The write numbers of a cluster's subclusters. Like the data, they belong to the host cluster: a copy of an entry
/// shares them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WritesId(u32);

/// The write of each subcluster of a cluster.
pub type SubclusterWrites = [WriteNumber; SUBCLUSTERS as usize];

#[derive(Clone, Copy, Debug)]
struct Table {
    host: HostCluster,
    first_page: u32,
    /// The number behind the highest one of a page.
    pages_end: u32,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    /// The index of the page in its table.
    number: u32,
    /// The next page of the same table, or [`NONE`].
    next: u32,
    entries: [ClusterMapping; PAGE_ENTRIES as usize],
}

const NONE: u32 = u32::MAX;

/// All L2 tables, including those of snapshots.
#[derive(Debug, Default)]
pub struct L2Tables {
    tables: Vec<Table>,
    pages: Vec<Page>,
    writes: Vec<SubclusterWrites>,
    /// The number of tables that were made as copies.
    copied: usize,
    /// The page of the last look-up, because operations touch neighbours.
    recent: Option<(TableId, u32, u32)>,
}

impl L2Tables {
    /// Removes everything, and keeps the buffers.
    pub fn clear(&mut self) {
        self.tables.clear();
        self.pages.clear();
        self.writes.clear();
        self.copied = 0;
        self.recent = None;
    }

    /// Returns the number of tables made so far.
    pub fn count(&self) -> usize {
        self.tables.len()
    }

    /// Returns the number of copies among them.
    pub fn copied(&self) -> usize {
        self.copied
    }

    /// Returns the index of a table among all tables.
    pub fn index(table: TableId) -> usize {
        table.0 as usize
    }

    /// Adds an empty table that lies in `host`.
    pub fn add(&mut self, host: HostCluster) -> TableId {
        let id = TableId(self.tables.len() as u32);
        self.tables.push(Table { host, first_page: NONE, pages_end: 0 });
        id
    }

    /// Returns the location of the table.
    #[inline]
    pub fn host(&self, table: TableId) -> HostCluster {
        self.tables[table.0 as usize].host
    }

    /// Adds a table in `host` with the entries of `original`.
    pub fn copy(&mut self, original: TableId, host: HostCluster) -> TableId {
        let copy = self.add(host);
        self.copied += 1;
        let mut page = self.tables[original.0 as usize].first_page;
        while page != NONE {
            let Page { number, next, entries } = self.pages[page as usize];
            self.add_page(copy, number, entries);
            page = next;
        }
        copy
    }

    /// Returns the entry at `index` of a table.
    #[inline]
    pub fn get(&mut self, table: TableId, index: u64) -> ClusterMapping {
        let number = (index / PAGE_ENTRIES) as u32;
        match self.find(table, number) {
            Some(page) => self.pages[page as usize].entries[(index % PAGE_ENTRIES) as usize],
            None => ClusterMapping::Unallocated,
        }
    }

    /// Changes the entry at `index` of a table.
    #[inline]
    pub fn set(&mut self, table: TableId, index: u64, entry: ClusterMapping) {
        let number = (index / PAGE_ENTRIES) as u32;
        let page = match self.find(table, number) {
            Some(page) => page,
            None => {
                self.add_page(table, number, [ClusterMapping::Unallocated; PAGE_ENTRIES as usize])
            }
        };
        self.pages[page as usize].entries[(index % PAGE_ENTRIES) as usize] = entry;
    }

    /// Returns the pages of a table in no particular order: the index of the first entry, and the entries.
    pub fn pages(&self, table: TableId) -> impl Iterator<Item = (u64, &[ClusterMapping])> {
        let mut page = self.tables[table.0 as usize].first_page;
        std::iter::from_fn(move || {
            let Page { number, next, entries } = self.pages.get(page as usize)?;
            page = *next;
            Some((u64::from(*number) * PAGE_ENTRIES, entries.as_slice()))
        })
    }

    /// Adds room for the write numbers of a host cluster.
    pub fn add_writes(&mut self) -> WritesId {
        self.writes.push([WriteNumber(0); SUBCLUSTERS as usize]);
        WritesId(self.writes.len() as u32 - 1)
    }

    /// Returns the write numbers of a host cluster's subclusters.
    pub fn writes(&self, id: WritesId) -> &SubclusterWrites {
        &self.writes[id.0 as usize]
    }

    /// Returns the same for changes.
    pub fn writes_mut(&mut self, id: WritesId) -> &mut SubclusterWrites {
        &mut self.writes[id.0 as usize]
    }

    #[inline]
    fn find(&mut self, table: TableId, number: u32) -> Option<u32> {
        if let Some((recent_table, recent_number, page)) = self.recent
            && recent_table == table
            && recent_number == number
        {
            return Some(page);
        }
        let Table { first_page: mut page, pages_end, .. } = self.tables[table.0 as usize];
        // Runs fill tables in their order.
        if number >= pages_end {
            return None;
        }
        while page != NONE && self.pages[page as usize].number != number {
            page = self.pages[page as usize].next;
        }
        if page == NONE {
            return None;
        }
        self.recent = Some((table, number, page));
        Some(page)
    }

    fn add_page(
        &mut self,
        table: TableId,
        number: u32,
        entries: [ClusterMapping; PAGE_ENTRIES as usize],
    ) -> u32 {
        let page = self.pages.len() as u32;
        let Table { first_page, pages_end, .. } = &mut self.tables[table.0 as usize];
        *pages_end = (*pages_end).max(number + 1);
        self.pages.push(Page { number, next: *first_page, entries });
        *first_page = page;
        self.recent = Some((table, number, page));
        page
    }
}

/// Entries that are nearer than this are written as one piece.
const JOIN_ENTRIES: u64 = 8;

/// Writes `entries` into the table at `table`. Each has an index and a value that `value` turns into an entry; they
/// are sorted by index. Pieces begin and end at pairs of entries.
pub fn write_sparse<T: Copy>(
    image: &mut Image,
    table: HostOffset,
    entries: &[(u64, T)],
    value: impl Fn(T) -> u64,
) {
    for group in entries.chunk_by(|(here, _), (next, _)| next - here <= JOIN_ENTRIES) {
        let (Some((first, _)), Some((last, _))) = (group.first(), group.last()) else {
            continue;
        };
        let (first, last) = (first / 2 * 2, last / 2 * 2 + 2);
        let bytes = image.place(table + first * 8, (last - first) as usize * 8);
        for (index, entry) in group {
            let at = (index - first) as usize * 8;
            bytes[at..at + 8].copy_from_slice(&value(*entry).to_be_bytes());
        }
    }
}
