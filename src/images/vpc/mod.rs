//! VHD images, which QEMU calls vpc: the bytes of a file that follows the decisions of the builder of qcow2 images.

mod attacks;
mod checksums;
mod encoding;
mod form;
mod rules;

use form::VpcForm;

use crate::disk::clusters::{ClusterSize, GuestCluster};
use crate::disk::observer::{Event, Observer};
use crate::disk::offsets::HostOffset;
use crate::images::block_table::{ONES, write_table};
use crate::images::damage::FieldChange;
use crate::images::file_plan::{FilePlan, TableReach};
use crate::images::files::LayerFiles;
use crate::images::format::{
    BuildBuffers, CreateOption, ImageDrawer, NewLayer, PlainForm, TWO_BLOCKS,
};
use crate::images::image::Image;
use crate::images::qcow2::{Builder, MappedCluster};
use crate::images::rule::{BrokenEntry, BrokenRule};
use crate::images::structures::report_structures;
use crate::images::unstamped::EntryForm;

use encoding::{FOOTER_BYTES, FooterFields, SECTOR_BYTES, dynamic_header};

/// The drawer of the format.
pub struct Drawer;

impl ImageDrawer for Drawer {
    fn plan(&self, form: u16, reach: TableReach, block: ClusterSize) -> FilePlan {
        VpcForm::new(form, reach).plan(block)
    }

    fn large_disk_cluster_bits(&self) -> u8 {
        17
    }

    fn build(
        &self,
        layer: NewLayer<'_>,
        buffers: &mut BuildBuffers,
        files: &mut LayerFiles,
        observer: &dyn Observer,
    ) {
        build(layer.builder, &mut buffers.mapped, files, observer);
    }

    fn has_zeros(&self, _file: &FilePlan) -> bool {
        false
    }

    /// A VHD image must not begin with data that looks like its footer, nor end with them if it has no footer there.
    fn misleads(&self, file: &FilePlan, cluster: GuestCluster) -> bool {
        let form = VpcForm::of(file);
        match form.is_fixed() {
            true => cluster == GuestCluster::new(0),
            false => !form.has_footer_at_end(),
        }
    }

    fn correct_checksums(&self, file: &mut [u8]) {
        checksums::correct(file);
    }

    fn entry_form(&self) -> EntryForm {
        EntryForm { width_bytes: 4, is_big_endian: true, unit_bits: 9, flags: 0 }
    }

    /// Footer and dynamic header.
    fn structure_bytes(&self, _files: usize) -> u64 {
        16 << 10
    }

    fn open_rules(&self) -> Vec<BrokenRule> {
        rules::VPC_OPEN_RULES.to_vec()
    }

    fn entry_rules(&self) -> &'static [BrokenRule] {
        rules::VPC_ENTRY_RULES
    }

    fn broken_at_open(&self, image: &Image) -> Option<BrokenRule> {
        rules::broken_at_open(image)
    }

    fn broken_entries(&self, image: &Image, take: &mut dyn FnMut(BrokenEntry)) {
        rules::broken_entries(image, take);
    }

    fn has_signature(&self, image: &Image, _rule: BrokenRule) -> bool {
        rules::has_cookie(image)
    }

    fn create_options(&self) -> &'static [CreateOption] {
        const KINDS: &[&str] = &["dynamic", "dynamic", "dynamic", "fixed"];
        &[
            CreateOption { name: "subformat", values: KINDS, of_large_disk: Some("dynamic") },
            CreateOption { name: "force_size", values: &["on", "off"], of_large_disk: None },
        ]
    }

    fn created_block_bytes(&self) -> u64 {
        2 << 20
    }

    fn plain_forms(&self) -> &'static [PlainForm] {
        const OPERANDS: &str = "size=8<<16+0";
        &[
            PlainForm {
                name: "dynamic VHD disk",
                operands: OPERANDS,
                form: 0,
                operations: TWO_BLOCKS,
            },
            PlainForm {
                name: "fixed VHD disk",
                operands: OPERANDS,
                form: 8,
                operations: TWO_BLOCKS,
            },
        ]
    }

    fn attacks(&self) -> &'static [&'static [FieldChange]] {
        attacks::ATTACKS
    }
}

/// Writes the image of `builder`, whose plan is that of a [`VpcForm`]. `mapped` is a buffer.
fn build(
    builder: &Builder,
    mapped: &mut Vec<MappedCluster>,
    files: &mut LayerFiles,
    observer: &dyn Observer,
) {
    files.begin(builder.plan().file.format);
    match VpcForm::of(&builder.plan().file).is_fixed() {
        true => write_fixed(builder, &mut files.image, observer),
        false => {
            builder.mapped_clusters(mapped);
            write_dynamic(builder, mapped, &mut files.image, observer);
        }
    }
}

/// Writes the guest data and a footer.
fn write_fixed(builder: &Builder, image: &mut Image, observer: &dyn Observer) {
    let size_bytes = builder.plan().virtual_size_bytes();
    builder.write_flat(image, HostOffset::ZERO);
    image.truncate(size_bytes);
    // A file that begins with its footer would be that of a dynamic disk.
    let end = size_bytes.max(SECTOR_BYTES);
    image.write(HostOffset::new(end), &footer(builder, None));
    image.seal(0);
    if observer.observes() {
        report_structures([(Some(0), Event::Block), (Some(end), Event::Footer)], observer);
    }
}

fn write_dynamic(
    builder: &Builder,
    mapped: &[MappedCluster],
    image: &mut Image,
    observer: &dyn Observer,
) {
    let (plan, form) = (builder.plan(), VpcForm::of(&builder.plan().file));
    let Some(places) = plan.file.places else { return };
    let block = plan.geometry.cluster_size;
    let blocks_end = places.start(builder.file_clusters());
    let (header, table) = (form.header_offset(), form.table_offset(blocks_end));
    let footer = footer(builder, Some(header));
    image.write(HostOffset::ZERO, &footer);
    let entries = entries(builder, mapped).min(places.guest_clusters);
    let entries = u32::try_from(entries).unwrap_or(u32::MAX);
    let block_bytes = u32::try_from(block.bytes()).unwrap_or(u32::MAX);
    image.write(HostOffset::new(header), &dynamic_header(table, entries, block_bytes));
    let start_of = |host| places.start_of(block, host);
    let entry_of = |block: &MappedCluster| {
        let (host, _) = block.data()?;
        Some(u32::try_from(start_of(host) / SECTOR_BYTES).unwrap_or(u32::MAX).to_be_bytes())
    };
    let end = write_table(image, table, entries, mapped, entry_of);
    let bitmap = &ONES[..form::bitmap_bytes(block.bytes()) as usize];
    for block in mapped {
        // The format has no other blocks.
        let Some((host, write)) = block.data() else { continue };
        let start = start_of(host);
        image.write_parts(HostOffset::new(start), &[], bitmap);
        let data = HostOffset::new(start.saturating_add(places.lead_bytes));
        builder.write_cluster(image, block.cluster, data, write);
    }
    let end = end.max(blocks_end);
    if form.has_footer_at_end() {
        image.write(HostOffset::new(end), &footer);
    }
    image.seal(end);
    if observer.observes() {
        let structures = [
            (Some(0), Event::Footer),
            (Some(header), Event::Header),
            (Some(table), Event::Table),
            ((!mapped.is_empty()).then(|| places.start(0)), Event::Block),
            (form.has_footer_at_end().then_some(end), Event::Footer),
        ];
        report_structures(structures, observer);
    }
}

/// Returns the number of entries: one for each block of the disk and for each block past its end, and the spare ones.
fn entries(builder: &Builder, mapped: &[MappedCluster]) -> u64 {
    builder.covered_clusters(mapped).saturating_add(builder.spare_l1_entries())
}

/// Returns the footer. A creator whose geometry states the size gives way to another one if no geometry is exact.
fn footer(builder: &Builder, header_offset: Option<u64>) -> [u8; FOOTER_BYTES] {
    let (plan, form) = (builder.plan(), VpcForm::of(&builder.plan().file));
    let exact = encoding::exact_geometry(plan.size_bytes / SECTOR_BYTES);
    let creator = match exact {
        None if form.states_geometry() => VpcForm::PLAIN.creator(),
        _ => form.creator(),
    };
    FooterFields {
        creator,
        size_bytes: plan.size_bytes,
        geometry: exact.unwrap_or((u16::MAX, 16, 255)),
        header_offset,
        decoration: form.decoration(),
    }
    .encode()
}
