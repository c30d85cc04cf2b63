//! Sparse extents: headers, grains, the grain directory and the grain tables.

use smallvec::SmallVec;

use crate::disk::offsets::HostOffset;
use crate::formats::vmdk::constants::{EMBEDDED_DESCRIPTOR_AT, SECTOR_BYTES, ZERO_GRAIN};
use crate::images::files::image::Image;
use crate::images::qcow2::tables::ClusterMapping;
use crate::images::qcow2::{Builder, MappedCluster};

use super::encoding::{DiskPart, Marker, SparseHeaderFields, cowd_header};
use super::form::{DESCRIPTOR_SECTORS, ENTRY_BYTES, GrainStorage, Kind, VmdkForm, padded};
use super::grains;

/// A sparse extent that a file gets.
#[derive(Clone, Copy, Debug)]
pub(super) struct SparseExtent<'b> {
    pub builder: &'b Builder,
    pub form: VmdkForm,
    /// The part of the disk that the extent holds.
    pub part: DiskPart,
    /// The file has a descriptor of the disk, too.
    pub has_descriptor: bool,
}

/// The places of the structures of a written extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedExtent {
    /// The byte behind the grains and the tables.
    pub end: u64,
    /// The offset of the redundant directory.
    pub redundant_directory: Option<u64>,
    /// The offset of the directory.
    pub directory: u64,
}

impl SparseExtent<'_> {
    /// Writes the extent, without its descriptor. `mapped` are the clusters of its part. Returns the places of
    /// its structures.
    pub(super) fn write(&self, mapped: &[MappedCluster], image: &mut Image) -> PlacedExtent {
        let (plan, form) = (self.builder.plan(), self.form);
        let places = plan.file.places;
        let grains_end = places.map_or(0, |places| places.start(self.builder.file_clusters()));
        let first = self.part.first;
        let entries = self.part.covered(mapped).div_ceil(form.table_entries());
        let entries =
            entries.saturating_add(self.part.spare_tables).min(form.max_directory_entries());
        let start = form.tables_offset(grains_end);
        let place = |start| PlacedTables::place(form, start, (first, entries), mapped);
        let redundant = form.has_redundant_directory().then(|| place(start));
        let tables = place(redundant.map_or(start, |tables| tables.end));
        let file_offset = |host| plan.file.file_offset(plan.geometry.cluster_size, host);
        for tables in [Some(tables), redundant].into_iter().flatten() {
            tables.write(image, mapped, |grain| match grain.mapping {
                ClusterMapping::Zero(_) if form.has_zero_grains() => ZERO_GRAIN,
                ClusterMapping::Normal(host, _) => sector(file_offset(host).get()),
                ClusterMapping::Compressed(stored) => sector(file_offset(stored.offset).get()),
                _ => 0,
            });
        }
        mapped.iter().for_each(|grain| self.write_grain(grain, image));
        let end = if form.has_tables_at_end() { tables.end } else { grains_end };
        let directories = (redundant.map(|tables| tables.directory), tables.directory);
        match form.kind() {
            Kind::Cowd => self.write_cowd_header((tables.directory, entries), end, image),
            Kind::Sparse { .. } => self.write_headers(directories, end, image),
        }
        PlacedExtent { end, redundant_directory: directories.0, directory: directories.1 }
    }

    fn write_grain(&self, grain: &MappedCluster, image: &mut Image) {
        let plan = self.builder.plan();
        let cluster_size = plan.geometry.cluster_size;
        match grain.mapping {
            ClusterMapping::Normal(host, write) => {
                let at = plan.file.file_offset(cluster_size, host);
                self.builder.write_cluster(image, grain.cluster, at, write);
            }
            ClusterMapping::Compressed(stored) => {
                let at = plan.file.file_offset(cluster_size, stored.offset);
                let place = (cluster_size.guest_offset(grain.cluster), at);
                let content = (stored.kind, stored.write);
                grains::write(image, self.form.storage(), plan, place, content);
            }
            _ => {}
        }
    }

    /// Writes the header, and the footer if the form has one. `directories` are the offsets of the redundant one and of
    /// the other; `end` is the byte behind the grains and tables.
    fn write_headers(
        &self,
        (redundant, directory): (Option<u64>, u64),
        end: u64,
        image: &mut Image,
    ) {
        let (plan, form) = (self.builder.plan(), self.form);
        let Kind::Sparse { has_footer, storage } = form.kind() else { return };
        // QEMU opens no extent of size 0 that states a descriptor.
        let has_descriptor = self.has_descriptor && self.part.sectors > 0;
        let header = SparseHeaderFields {
            version: form.version(),
            capacity: self.part.sectors,
            grain: plan.geometry.cluster_size.bytes() / SECTOR_BYTES,
            descriptor: if has_descriptor { EMBEDDED_DESCRIPTOR_AT / SECTOR_BYTES } else { 0 },
            descriptor_size: if has_descriptor { DESCRIPTOR_SECTORS } else { 0 },
            table_entries: u32::try_from(form.table_entries()).unwrap_or(u32::MAX),
            redundant_directory: redundant.map(|offset| offset / SECTOR_BYTES),
            directory: Some(directory / SECTOR_BYTES),
            overhead: plan.file.places.map_or(0, |places| places.first_bytes / SECTOR_BYTES),
            has_zero_grains: form.has_zero_grains(),
            is_compressed: form.is_compressed(),
            has_markers: storage == GrainStorage::Marked,
        };
        if !has_footer {
            image.write(HostOffset::ZERO, &header.encode());
            return;
        }
        image.write(HostOffset::ZERO, &SparseHeaderFields { directory: None, ..header }.encode());
        let sectors = [Marker::Footer.encode(1), header.encode(), Marker::End.encode(0)];
        image.write(HostOffset::new(end), sectors.as_flattened());
    }

    /// Writes the header of an extent as ESX writes it.
    fn write_cowd_header(&self, (directory, entries): (u64, u64), end: u64, image: &mut Image) {
        let grain = self.builder.plan().geometry.cluster_size.bytes();
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let disk = (small(self.part.sectors), sector(grain));
        let header = cowd_header(disk, (sector(directory), small(entries)), sector(end));
        image.write(HostOffset::ZERO, &header);
    }
}

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

/// Writes `entries` of a table, whose indexes all lie in `range`. All other entries in `range` become zeros.
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
