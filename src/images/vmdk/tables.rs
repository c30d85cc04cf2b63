//! The grain directory and the grain tables.

use smallvec::SmallVec;

use crate::disk::offsets::HostOffset;
use crate::images::image::Image;
use crate::images::qcow2::MappedCluster;

use super::encoding::{Marker, SECTOR_BYTES};
use super::form::{ENTRY_BYTES, VmdkForm, padded};

/// The number of entries between two grains up to which one write covers both.
const NEAR_ENTRIES: u64 = 32;
/// The same between two entries of a directory: as many entries as the directory of a small disk has.
const NEAR_TABLES: u64 = 1 << 12;
/// The longest directory that names tables without an entry. Readers look into each of them.
const MOST_EMPTY_TABLES: u64 = 1 << 10;

/// A directory with its tables, which lie next to each other.
#[derive(Clone, Copy, Debug)]
pub struct PlacedTables {
    form: VmdkForm,
    /// The first cluster of the extent.
    first: u64,
    /// The number of entries of the directory.
    entries: u64,
    /// It names all tables, also those without an entry.
    names_all: bool,
    /// The number of tables that it names.
    named: u64,
    /// The offset of the directory, behind its marker.
    pub directory: u64,
    /// The offset of the first table, of its marker if it has one.
    tables: u64,
    /// The byte behind the tables and the directory.
    pub end: u64,
}

impl PlacedTables {
    /// Places the tables for `mapped`, sorted by grain, from byte `start` on. The extent begins with the cluster
    /// `first`, and its directory has `entries`. Before the grains, the directory comes first. Behind them it comes
    /// last, as in files that are written as a stream.
    pub fn place(
        form: VmdkForm,
        start: u64,
        (first, entries): (u64, u64),
        mapped: &[MappedCluster],
    ) -> Self {
        let names_all = form.has_all_tables() && entries <= MOST_EMPTY_TABLES;
        let named = match names_all {
            true => entries,
            false => tables_of((form, first), mapped).count() as u64,
        };
        let tables_bytes = named * form.table_stride_bytes();
        let (directory, tables) = match form.has_tables_at_end() {
            true => (start + tables_bytes, start),
            false => (start, start + form.directory_bytes(entries)),
        };
        let end = start + tables_bytes + form.directory_bytes(entries);
        Self {
            form,
            first,
            entries,
            names_all,
            named,
            directory: directory + form.table_marker_bytes(),
            tables,
            end,
        }
    }

    /// Returns the offset of the table that the directory names as number `nth`, behind its marker.
    fn table(&self, nth: u64) -> u64 {
        let stride = self.form.table_stride_bytes();
        self.tables + nth * stride + self.form.table_marker_bytes()
    }

    /// Writes the directory and the tables. `entry_of` returns the entry of a grain.
    pub fn write(
        &self,
        image: &mut Image,
        mapped: &[MappedCluster],
        entry_of: impl Fn(&MappedCluster) -> u32,
    ) {
        let per_table = self.form.table_entries();
        self.write_markers(image);
        let numbered = || (0..).zip(tables_of((self.form, self.first), mapped));
        let names = |nth: u64| sector(self.table(nth));
        match self.names_all {
            true => {
                let named = (0..self.named).map(|nth| (nth, names(nth)));
                write_entries(image, self.directory, 0..self.named, named);
            }
            false => {
                let mut named = numbered().map(|(nth, (index, _))| (index, names(nth))).peekable();
                while let Some(first) = named.next() {
                    let mut near: SmallVec<[_; 16]> = SmallVec::from_slice(&[first]);
                    let mut end = first.0 + 1;
                    while let Some(next) = named.next_if(|next| next.0 < end + NEAR_TABLES) {
                        end = next.0 + 1;
                        near.push(next);
                    }
                    write_entries(image, self.directory, first.0..end, near.into_iter());
                }
            }
        }
        for (nth, (index, grains)) in numbered() {
            let nth = if self.names_all { index } else { nth };
            let start = self.first + index * per_table;
            let inside = |grain: &MappedCluster| grain.cluster.get() - start;
            for near in grains.chunk_by(|here, then| inside(then) - inside(here) <= NEAR_ENTRIES) {
                let (Some(first), Some(last)) = (near.first(), near.last()) else { continue };
                let entries = near.iter().map(|grain| (inside(grain), entry_of(grain)));
                let range = inside(first)..inside(last) + 1;
                write_entries(image, self.table(nth), range, entries);
            }
        }
    }

    /// Writes the markers before the directory and the tables, if they have any.
    fn write_markers(&self, image: &mut Image) {
        let length = self.form.table_marker_bytes();
        if length == 0 {
            return;
        }
        let mut write = |structure: u64, marker: Marker, entries: u64| {
            let sectors = padded(entries * ENTRY_BYTES) / SECTOR_BYTES;
            image.write(HostOffset::new(structure - length), &marker.encode(sectors));
        };
        for nth in 0..self.named {
            write(self.table(nth), Marker::Table, self.form.table_entries());
        }
        write(self.directory, Marker::Directory, self.entries);
    }
}

/// Returns the tables that have a grain: the index of each in the directory, with its grains.
fn tables_of(
    (form, first): (VmdkForm, u64),
    mapped: &[MappedCluster],
) -> impl Iterator<Item = (u64, &[MappedCluster])> + Clone {
    let index = move |grain: &MappedCluster| (grain.cluster.get() - first) / form.table_entries();
    let tables = mapped.chunk_by(move |here, then| index(here) == index(then));
    tables.map(move |grains| (grains.first().map_or(0, index), grains))
}

/// Writes entries of a table, all of which lie in `range`. The others in it are zeros.
fn write_entries(
    image: &mut Image,
    table: u64,
    range: std::ops::Range<u64>,
    entries: impl Iterator<Item = (u64, u32)>,
) {
    let at = HostOffset::new(table + range.start * ENTRY_BYTES);
    let length = range.end.saturating_sub(range.start) * ENTRY_BYTES;
    let (out, _) = image.place(at, length as usize).as_chunks_mut::<{ ENTRY_BYTES as usize }>();
    for (index, entry) in entries {
        if let Some(out) = out.get_mut((index - range.start) as usize) {
            *out = entry.to_le_bytes();
        }
    }
}

/// Returns the sector at an offset. Offsets of structures are bounded by the plan of the file.
pub fn sector(offset: u64) -> u32 {
    u32::try_from(offset / SECTOR_BYTES).unwrap_or(u32::MAX)
}
