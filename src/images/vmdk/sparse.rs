//! Sparse extents: headers, tables and grains.

use crate::disk::offsets::HostOffset;
use crate::images::image::Image;
use crate::images::qcow2::tables::ClusterMapping;
use crate::images::qcow2::{Builder, MappedCluster};

use super::descriptor;
use super::encoding::{Marker, SECTOR_BYTES, SparseHeaderFields, ZERO_GRAIN, cowd_header};
use super::form::{DESCRIPTOR_SECTORS, GrainStorage, Kind, VmdkForm};
use super::grains;
use super::part::DiskPart;
use super::tables::{PlacedTables, sector};

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
            descriptor: if has_descriptor { descriptor::OFFSET / SECTOR_BYTES } else { 0 },
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
