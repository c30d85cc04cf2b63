//! VMDK images in one file: the bytes of a file that follows the decisions of the builder of qcow2 images.

mod descriptor;
mod encoding;
mod form;
mod grains;
mod tables;

pub use descriptor::Parent;
pub use form::VmdkForm;

use crate::disk::offsets::HostOffset;
use crate::images::entropy::Entropy;
use crate::images::files::LayerFiles;
use crate::images::image::Image;
use crate::images::qcow2::payload::PayloadKind;
use crate::images::qcow2::tables::ClusterMapping;
use crate::images::qcow2::{Builder, ImagePlan, MappedCluster, PayloadFrame};

use encoding::{Marker, SECTOR_BYTES, SparseHeaderFields, ZERO_GRAIN, cowd_header};
use form::{DESCRIPTOR_SECTORS, GrainStorage, Kind};
use tables::{PlacedTables, sector};

impl VmdkForm {
    /// Returns the bytes around the payload of a compressed grain.
    pub fn payload_frame(self) -> PayloadFrame {
        grains::frame(self.storage())
    }

    /// Returns the kind of payload that a compressed grain gets for `wanted`.
    pub fn fitting_payload(self, plan: &ImagePlan, wanted: PayloadKind) -> PayloadKind {
        grains::fitting(self.storage(), plan, wanted)
    }
}

/// Returns the VMDK image of `builder` as a parent with the file name `name`.
pub fn parent<'n>(name: &'n [u8], builder: &Builder) -> Parent<'n> {
    Parent { name, identity: identity(builder, VmdkForm::new(builder.plan().file.form)) }
}

/// Writes the image of `builder`, whose plan is that of a [`VmdkForm`]. `mapped` is a buffer.
pub fn build(
    builder: &Builder,
    parent: Option<Parent>,
    mapped: &mut Vec<MappedCluster>,
    files: &mut LayerFiles,
) {
    let plan = builder.plan();
    files.begin(plan.file.format);
    let form = VmdkForm::new(plan.file.form);
    let Some(places) = plan.file.places else { return };
    builder.mapped_clusters(mapped);
    mapped.retain(|grain| is_stored(form, grain.mapping));
    let grains_end = places.start(builder.file_clusters());
    let entries = directory_entries(builder, form, mapped);
    let start = form.tables_offset(grains_end);
    let redundant =
        form.has_redundant_directory().then(|| PlacedTables::place(form, start, entries, mapped));
    let behind = redundant.map_or(start, |tables| tables.end);
    let tables = PlacedTables::place(form, behind, entries, mapped);
    let file_offset = |host| plan.file.file_offset(plan.geometry.cluster_size, host);
    let image = &mut files.image;
    for tables in [Some(tables), redundant].into_iter().flatten() {
        tables.write(image, mapped, |grain| match grain.mapping {
            ClusterMapping::Zero(_) => ZERO_GRAIN,
            ClusterMapping::Normal(host, _) => sector(file_offset(host).get()),
            ClusterMapping::Compressed(stored) => sector(file_offset(stored.offset).get()),
            ClusterMapping::Unallocated | ClusterMapping::Extended(_) => 0,
        });
    }
    for grain in mapped.iter() {
        write_grain(builder, form, grain, image);
    }
    let end = if form.has_tables_at_end() { tables.end } else { grains_end };
    let directories = (redundant.map(|tables| tables.directory), tables.directory);
    match form.kind() {
        Kind::Cowd => write_cowd_header(builder, (tables.directory, entries), end, image),
        Kind::Sparse { .. } => write_headers(builder, form, directories, end, image),
    }
    let identities = (identity(builder, form), parent);
    descriptor::write(&mut files.image, form, (&files.name, capacity(builder)), identities);
    files.image.seal(end);
}

/// Reports whether the form has an entry for a grain. It has none for some grains past the end of the disk.
fn is_stored(form: VmdkForm, mapping: ClusterMapping) -> bool {
    match mapping {
        ClusterMapping::Zero(_) => form.has_zero_grains(),
        ClusterMapping::Normal(..) => !form.is_compressed(),
        ClusterMapping::Compressed(_) => form.is_compressed(),
        ClusterMapping::Unallocated | ClusterMapping::Extended(_) => false,
    }
}

fn write_grain(builder: &Builder, form: VmdkForm, grain: &MappedCluster, image: &mut Image) {
    let plan = builder.plan();
    let cluster_size = plan.geometry.cluster_size;
    match grain.mapping {
        ClusterMapping::Normal(host, write) => {
            let at = plan.file.file_offset(cluster_size, host);
            builder.write_cluster(image, grain.cluster, at, write);
        }
        ClusterMapping::Compressed(stored) => {
            let at = plan.file.file_offset(cluster_size, stored.offset);
            let place = (cluster_size.guest_offset(grain.cluster), at);
            let content = (stored.kind, stored.write);
            grains::write(image, form.storage(), plan, place, content);
        }
        _ => {}
    }
}

/// Returns the number of sectors of the disk.
fn capacity(builder: &Builder) -> u64 {
    builder.plan().size_bytes / SECTOR_BYTES
}

/// Returns the number of directory entries: those that the disk and the grains past its end need, and the spare ones.
fn directory_entries(builder: &Builder, form: VmdkForm, mapped: &[MappedCluster]) -> u64 {
    let needed = builder.covered_clusters(mapped).div_ceil(form.table_entries());
    needed.saturating_add(builder.spare_l1_entries()).min(form.max_directory_entries())
}

/// Returns the identity of the content. Readers compare it with that in the descriptor of a child.
fn identity(builder: &Builder, form: VmdkForm) -> u32 {
    // The largest number stands for no content.
    const FIRST: u32 = u32::MAX - 1;
    let made = Entropy::new(builder.plan().rng_seed).below(FIRST.into());
    match form.has_long_descriptor() {
        true => u32::try_from(made).unwrap_or(FIRST),
        false => FIRST,
    }
}

/// Writes the header of a sparse extent, and the footer if the form has one. `directories` are the offsets of the
/// redundant one and of the other; `end` is the byte behind the grains and tables.
fn write_headers(
    builder: &Builder,
    form: VmdkForm,
    (redundant, directory): (Option<u64>, u64),
    end: u64,
    image: &mut Image,
) {
    let plan = builder.plan();
    let Kind::Sparse { has_footer, storage } = form.kind() else { return };
    let capacity = capacity(builder);
    let header = SparseHeaderFields {
        version: form.version(),
        capacity,
        grain: plan.geometry.cluster_size.bytes() / SECTOR_BYTES,
        // QEMU opens no extent of size 0 that states a descriptor.
        descriptor: if capacity > 0 { descriptor::OFFSET / SECTOR_BYTES } else { 0 },
        descriptor_size: if capacity > 0 { DESCRIPTOR_SECTORS } else { 0 },
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
fn write_cowd_header(
    builder: &Builder,
    (directory, entries): (u64, u64),
    end: u64,
    image: &mut Image,
) {
    let grain = builder.plan().geometry.cluster_size.bytes();
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let disk = (small(capacity(builder)), sector(grain));
    let header = cowd_header(disk, (sector(directory), small(entries)), sector(end));
    image.write(HostOffset::ZERO, &header);
}
