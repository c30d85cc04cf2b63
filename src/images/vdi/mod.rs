//! VDI images: the bytes of a file that follows the decisions of the builder of qcow2 images.

mod attacks;
mod encoding;
mod form;
mod rules;

use std::sync::LazyLock;

use crate::disk::clusters::ClusterSize;
use crate::disk::observer::{Event, Observer};
use crate::disk::offsets::HostOffset;
use crate::formats::vdi::constants::VDI_DISCARDED;
use crate::images::block_table::{BLOCK_ENTRY_BYTES, write_table};
use crate::images::damage::FieldChange;
use crate::images::file_plan::{FilePlan, TableReach};
use crate::images::files::LayerFiles;
use crate::images::format::{
    BuildBuffers, CreateOption, ImageDrawer, NewLayer, PlainForm, TWO_BLOCKS,
};
use crate::images::image::Image;
use crate::images::qcow2::tables::ClusterMapping;
use crate::images::qcow2::{Builder, MappedCluster};
use crate::images::rule::{BrokenEntry, BrokenRule};
use crate::images::structures::report_structures;
use crate::images::unstamped::EntryForm;

use encoding::HeaderFields;
use form::{MAX_MAP_ENTRIES, VDI_BLOCK_BYTES, VdiForm};

/// The block map of a static image: block 0, block 1 and so on.
static ALL_BLOCKS: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..MAX_MAP_ENTRIES as u32).flat_map(u32::to_le_bytes).collect());

/// The drawer of the format.
pub struct Drawer;

impl ImageDrawer for Drawer {
    fn block_size(&self, _cluster_bits: u32) -> ClusterSize {
        VdiForm::block_size()
    }

    fn plan(&self, form: u16, reach: TableReach, _block: ClusterSize) -> FilePlan {
        VdiForm::new(form, reach).plan()
    }

    fn build(
        &self,
        layer: NewLayer<'_>,
        buffers: &mut BuildBuffers,
        files: &mut LayerFiles,
        observer: &dyn Observer,
    ) {
        let file = &layer.builder.plan().file;
        files.begin(file.format);
        let form = VdiForm::new(file.form, file.reach);
        match form.is_static() {
            true => write_static(layer.builder, form, &mut files.image),
            false => {
                layer.builder.mapped_clusters(&mut buffers.mapped);
                write_dynamic(layer.builder, form, &buffers.mapped, &mut files.image);
            }
        }
        if observer.observes() {
            let (map, data) = (Some(form.map_offset()), Some(form.data_offset()));
            let structures = [(Some(0), Event::Header), (map, Event::Table), (data, Event::Block)];
            report_structures(structures, observer);
        }
    }

    fn keeps_place_of_zeros(&self) -> bool {
        false
    }

    fn entry_form(&self) -> EntryForm {
        EntryForm { width_bytes: 4, is_big_endian: false, unit_bits: 20, flags: 0 }
    }

    /// The header.
    fn structure_bytes(&self, _files: usize) -> u64 {
        4 << 10
    }

    fn open_rules(&self) -> Vec<BrokenRule> {
        rules::open_rules().collect()
    }

    fn entry_rules(&self) -> &'static [BrokenRule] {
        &[]
    }

    fn broken_at_open(&self, image: &Image) -> Option<BrokenRule> {
        rules::broken_at_open(image)
    }

    fn broken_entries(&self, _image: &Image, _take: &mut dyn FnMut(BrokenEntry)) {}

    fn has_signature(&self, image: &Image, _rule: BrokenRule) -> bool {
        rules::has_signature(image)
    }

    fn create_options(&self) -> &'static [CreateOption] {
        const STATIC: &[&str] = &["off", "off", "on"];
        &[CreateOption { name: "static", values: STATIC, of_large_disk: Some("off") }]
    }

    fn created_block_bytes(&self) -> u64 {
        VDI_BLOCK_BYTES
    }

    fn plain_forms(&self) -> &'static [PlainForm] {
        const OPERANDS: &str = "size=8<<20+0";
        &[
            PlainForm {
                name: "dynamic VDI disk",
                operands: OPERANDS,
                form: 0,
                operations: TWO_BLOCKS,
            },
            PlainForm {
                name: "static VDI disk",
                operands: OPERANDS,
                form: 1,
                operations: TWO_BLOCKS,
            },
        ]
    }

    fn attacks(&self) -> &'static [&'static [FieldChange]] {
        attacks::ATTACKS
    }
}

/// Writes an image that stores all blocks of the disk.
fn write_static(builder: &Builder, form: VdiForm, image: &mut Image) {
    let size_bytes = builder.plan().virtual_size_bytes();
    let blocks = size_bytes.div_ceil(VDI_BLOCK_BYTES);
    let end = form.data_offset() + blocks * VDI_BLOCK_BYTES;
    builder.write_flat(image, HostOffset::new(form.data_offset()));
    image.truncate(end);
    let header = HeaderFields { size_bytes, entries: blocks, allocated: blocks };
    image.write(HostOffset::ZERO, &header.encode(form));
    let map = ALL_BLOCKS.get(..(blocks * BLOCK_ENTRY_BYTES) as usize).unwrap_or(&ALL_BLOCKS);
    image.write_parts(HostOffset::new(form.map_offset()), &[], map);
    image.seal(end);
}

/// Writes an image with the blocks of `mapped`, sorted by their index.
fn write_dynamic(builder: &Builder, form: VdiForm, mapped: &[MappedCluster], image: &mut Image) {
    let plan = builder.plan();
    let Some(places) = plan.file.places else { return };
    let block = plan.geometry.cluster_size;
    let number_of = |host| block.host_cluster(host).get();
    let numbers = mapped.iter().filter_map(|mapped| Some(number_of(mapped.data()?.0)));
    let (allocated, highest) =
        numbers.fold((0, None), |(count, highest), number| (count + 1, highest.max(Some(number))));
    let covered = builder.covered_clusters(mapped).saturating_add(builder.spare_l1_entries());
    let entries = covered.min(places.guest_clusters).max(highest.map_or(0, |it| it + 1));
    let size_bytes = plan.virtual_size_bytes();
    let header = HeaderFields { size_bytes, entries, allocated };
    image.write(HostOffset::ZERO, &header.encode(form));
    let entry_of = |mapped: &MappedCluster| {
        let entry = match mapped.mapping {
            ClusterMapping::Normal(host, _) => u32::try_from(number_of(host)).ok()?,
            _ => VDI_DISCARDED,
        };
        Some(entry.to_le_bytes())
    };
    let entries = u32::try_from(entries).unwrap_or(u32::MAX);
    let map_end = write_table(image, form.map_offset(), entries, mapped, entry_of);
    for mapped in mapped {
        let Some((host, write)) = mapped.data() else { continue };
        let at = HostOffset::new(places.start_of(block, host));
        builder.write_cluster(image, mapped.cluster, at, write);
    }
    image.seal(map_end.max(places.start(builder.file_clusters())));
}
