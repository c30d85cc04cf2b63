//! The L2 tables of an image that is being built, in pages of sixteen entries: what is not touched
//! costs nothing.

use super::encoding::entries::Subclusters;
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::units::{HostCluster, SUBCLUSTERS};
use crate::images::content::WriteNumber;

/// Entries in a page.
pub const PAGE_ENTRIES: u64 = 16;

/// One L2 table of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableId(u32);

/// What a cluster of the guest is mapped to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Entry {
    /// Nothing.
    #[default]
    Unallocated,
    /// Zeros; with a host cluster where the allocation was kept. Not under extended L2.
    Zero(Option<HostOffset>),
    /// A cluster of data. Not under extended L2.
    Normal(HostOffset, WriteNumber),
    /// A compressed cluster.
    Compressed(Compressed),
    /// Extended L2: a host cluster or none, and what the bitmap says.
    Extended(Extended),
}

/// A compressed cluster: where it lies, and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compressed {
    /// Its first byte.
    pub offset: HostOffset,
    /// How many bytes, as the descriptor says it.
    pub length_bytes: u32,
    /// Which write made it.
    pub write: WriteNumber,
    /// What it holds, and how it is coded.
    pub kind: super::payload::Kind,
}

/// An entry of an extended L2 table that is not compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// The host cluster, where there is one.
    pub host: Option<HostOffset>,
    /// Which subclusters are allocated, and which read as zeros.
    pub bitmap: Subclusters,
    /// Who wrote each subcluster; meaningful where `host` is there.
    pub writes: WritesId,
}

/// The write numbers of one cluster's subclusters. Like the data themselves, they belong to the host
/// cluster: a copy of an entry shares them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WritesId(u32);

#[derive(Clone, Copy, Debug)]
struct Table {
    host: HostCluster,
    first_page: u32,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    /// The page's place in its table.
    number: u32,
    /// The next page of the same table, or [`NONE`].
    next: u32,
    entries: [Entry; PAGE_ENTRIES as usize],
}

const NONE: u32 = u32::MAX;

/// All L2 tables, those of snapshots among them.
#[derive(Debug, Default)]
pub struct Tables {
    tables: Vec<Table>,
    pages: Vec<Page>,
    writes: Vec<[WriteNumber; SUBCLUSTERS as usize]>,
    /// How many tables were made as copies.
    copied: usize,
    /// The page that was found last: operations touch neighbours.
    recent: Option<(TableId, u32, u32)>,
}

impl Tables {
    /// Forgets everything but the buffers.
    pub fn clear(&mut self) {
        self.tables.clear();
        self.pages.clear();
        self.writes.clear();
        self.copied = 0;
        self.recent = None;
    }

    /// How many tables were ever made.
    pub fn count(&self) -> usize {
        self.tables.len()
    }

    /// How many of them were copies.
    pub fn copied(&self) -> usize {
        self.copied
    }

    /// The table's place among all, from 0.
    pub fn index(table: TableId) -> usize {
        table.0 as usize
    }

    /// An empty table that lies in `host`.
    pub fn add(&mut self, host: HostCluster) -> TableId {
        let id = TableId(self.tables.len() as u32);
        self.tables.push(Table { host, first_page: NONE });
        id
    }

    /// Where the table lies.
    #[inline]
    pub fn host(&self, table: TableId) -> HostCluster {
        self.tables[table.0 as usize].host
    }

    /// A table in `host` with the entries of `original`.
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

    /// The entry at `index` of a table.
    #[inline]
    pub fn get(&mut self, table: TableId, index: u64) -> Entry {
        let number = (index / PAGE_ENTRIES) as u32;
        match self.find(table, number) {
            Some(page) => self.pages[page as usize].entries[(index % PAGE_ENTRIES) as usize],
            None => Entry::Unallocated,
        }
    }

    /// Changes the entry at `index` of a table.
    #[inline]
    pub fn set(&mut self, table: TableId, index: u64, entry: Entry) {
        let number = (index / PAGE_ENTRIES) as u32;
        let page = match self.find(table, number) {
            Some(page) => page,
            None => self.add_page(table, number, [Entry::Unallocated; PAGE_ENTRIES as usize]),
        };
        self.pages[page as usize].entries[(index % PAGE_ENTRIES) as usize] = entry;
    }

    /// The pages of a table, in no order: the index of the first entry, and the entries.
    pub fn pages(&self, table: TableId) -> impl Iterator<Item = (u64, &[Entry])> {
        let mut page = self.tables[table.0 as usize].first_page;
        std::iter::from_fn(move || {
            let Page { number, next, entries } = self.pages.get(page as usize)?;
            page = *next;
            Some((u64::from(*number) * PAGE_ENTRIES, entries.as_slice()))
        })
    }

    /// Room for the write numbers of a host cluster, as yet unwritten.
    pub fn add_writes(&mut self) -> WritesId {
        self.writes.push([WriteNumber(0); SUBCLUSTERS as usize]);
        WritesId(self.writes.len() as u32 - 1)
    }

    /// Who wrote the subclusters of a host cluster.
    pub fn writes(&self, id: WritesId) -> &[WriteNumber; SUBCLUSTERS as usize] {
        &self.writes[id.0 as usize]
    }

    /// To change who wrote the subclusters of a host cluster.
    pub fn writes_mut(&mut self, id: WritesId) -> &mut [WriteNumber; SUBCLUSTERS as usize] {
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
        let mut page = self.tables[table.0 as usize].first_page;
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
        entries: [Entry; PAGE_ENTRIES as usize],
    ) -> u32 {
        let page = self.pages.len() as u32;
        let first_page = &mut self.tables[table.0 as usize].first_page;
        self.pages.push(Page { number, next: *first_page, entries });
        *first_page = page;
        self.recent = Some((table, number, page));
        page
    }
}
