//! VHDX images: the bytes of a file that follows the decisions of the builder of qcow2 images.

mod encoding;
mod form;
mod rules;
mod specification;

use crate::disk::clusters::ClusterSize;
use crate::disk::observer::{Event, Observer, Rare};
use crate::disk::offsets::HostOffset;
use crate::formats::anatomy::Part;

use super::content::unstamped::EntryForm;
use super::damage::attacks::{entry, header, item, set};
use super::damage::rules::{BrokenEntry, BrokenRule};
use super::damage::{FieldChange, Transform};
use super::files::LayerFiles;
use super::files::image::Image;
use super::format::file_plan::{BlockPlaces, FilePlan, TableReach};
use super::format::{BuildBuffers, CreateOption, ImageDrawer, NewLayer, PlainForm, TWO_BLOCKS};
use super::qcow2::tables::ClusterMapping;
use super::qcow2::{Builder, MappedCluster, report_structures};
use encoding::{
    EntryState, FILE_IDENTIFIER, HEADERS, HeaderPlan, MetadataPlan, OLD_LOG_ID, REGION_TABLES,
    RegionTablePlan, SECTOR_BYTES,
};
use form::{OtherHeader, RegionOffsets, SPARE_FILE_BYTES, VhdxForm};

/// The drawer of the format.
pub struct Drawer;

impl ImageDrawer for Drawer {
    fn block_size(&self, cluster_bits: u32) -> ClusterSize {
        form::block_size(cluster_bits)
    }

    fn plan(&self, form: u16, reach: TableReach, block: ClusterSize) -> FilePlan {
        VhdxForm::new(form, reach).plan(block)
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

    fn correct_checksums(&self, file: &mut [u8]) {
        encoding::correct(file);
    }

    fn entry_form(&self) -> EntryForm {
        // A block that is fully present.
        EntryForm { width_bytes: 8, is_big_endian: false, unit_bits: 0, flags: 6 }
    }

    /// Identifier, headers, region tables and metadata, which are mostly empty.
    fn structure_bytes(&self, _files: usize) -> u64 {
        64 << 10
    }

    fn open_rules(&self) -> Vec<BrokenRule> {
        rules::VHDX_OPEN_RULES.to_vec()
    }

    fn entry_rules(&self) -> &'static [BrokenRule] {
        rules::VHDX_ENTRY_RULES
    }

    fn broken_at_open(&self, image: &Image) -> Option<BrokenRule> {
        rules::broken_at_open(image)
    }

    fn broken_entries(&self, image: &Image, take: &mut dyn FnMut(BrokenEntry)) {
        rules::broken_entries(image, take);
    }

    fn broken_by_specification(
        &self,
        files: &LayerFiles,
        _below: Option<&LayerFiles>,
    ) -> Option<BrokenRule> {
        specification::broken_by_specification(&files.image)
    }

    fn has_signature(&self, _image: &Image, rule: BrokenRule) -> bool {
        rule != rules::VHDX_FILE
    }

    fn create_options(&self) -> &'static [CreateOption] {
        const KINDS: &[&str] = &["dynamic", "dynamic", "fixed"];
        const BLOCKS: &[&str] = &["1048576", "2097152", "8388608", "33554432"];
        const LOGS: &[&str] = &["1048576", "2097152", "4194304"];
        &[
            CreateOption { name: "subformat", values: KINDS, of_large_disk: Some("dynamic") },
            CreateOption { name: "block_size", values: BLOCKS, of_large_disk: None },
            CreateOption { name: "log_size", values: LOGS, of_large_disk: None },
            CreateOption { name: "block_state_zero", values: &["on", "off"], of_large_disk: None },
        ]
    }

    fn plain_forms(&self) -> &'static [PlainForm] {
        const OPERANDS: &str = "cluster_bits=9 size=8<<20+0";
        &[PlainForm { name: "VHDX disk", operands: OPERANDS, form: 0, operations: TWO_BLOCKS }]
    }

    fn attacks(&self) -> &'static [&'static [FieldChange]] {
        ATTACKS
    }
}

/// The data of a block that is zeros, but has its room in the file. A reader that ignores the state finds them.
const STALE: [u8; 64] = [0x5A; 64];

/// Writes the image of `builder`, whose plan is that of a [`VhdxForm`]. `mapped` is a buffer.
fn build(
    builder: &Builder,
    mapped: &mut Vec<MappedCluster>,
    files: &mut LayerFiles,
    observer: &dyn Observer,
) {
    let plan = builder.plan();
    files.begin(plan.file.format);
    let (Some(places), image) = (&plan.file.places, &mut files.image) else { return };
    builder.mapped_clusters(mapped);
    let form = VhdxForm::of(&plan.file);
    let table = TableShape::new(builder);
    let blocks_end = places.start(builder.file_clusters());
    let length = form.table_bytes(table.entries.saturating_add(builder.spare_l1_entries()));
    let regions = form.regions(blocks_end, length);
    image.write(HostOffset::ZERO, FILE_IDENTIFIER);
    write_headers(image, form, &regions);
    write_region_tables(image, form, &regions, length);
    write_metadata(image, form, builder, regions.metadata);
    table.write(image, HostOffset::new(regions.table), mapped, form, places);
    let end = write_blocks(image, builder, mapped, places).max(regions.end);
    // A fixed disk has room for all of its blocks (specification, section 2.6.2.1).
    let all_blocks =
        places.start(builder.guest_clusters()).saturating_add(form.max_regions_bytes());
    let end = if form.is_fixed() { end.max(all_blocks) } else { end };
    let tail_end = blocks_end.max(end).saturating_add(SPARE_FILE_BYTES);
    image.seal(if form.has_tail() { tail_end } else { end });
    if observer.observes() {
        let blocks = (!mapped.is_empty()).then(|| places.start(0));
        report(form, &regions, blocks, observer);
    }
}

/// Reports the structures, and the rare events that no reader notices. `blocks` is the offset of the first block.
fn report(form: VhdxForm, regions: &RegionOffsets, blocks: Option<u64>, observer: &dyn Observer) {
    let header = match form.second_header_counts() {
        true => Event::SecondHeader,
        false => Event::Header,
    };
    let structures = [
        (Some(HEADERS[0]), header),
        (Some(regions.log), Event::Log),
        (Some(regions.table), Event::Table),
        (Some(regions.metadata), Event::Metadata),
        (blocks, Event::Block),
    ];
    report_structures(structures, observer);
    if form.has_old_log() {
        observer.rare(Rare::VhdxOldLog);
    }
    if form.has_unknown() {
        observer.rare(Rare::VhdxUnknown);
    }
}

/// Writes the header that counts and the other one, and an old entry to the log.
fn write_headers(image: &mut Image, form: VhdxForm, regions: &RegionOffsets) {
    let decoration = form.decoration();
    // Most numbers have more than 32 bits.
    let sequence = (u64::from(decoration) + 1) << 24;
    let header = HeaderPlan { sequence, decoration, log_id: 0, log_offset: regions.log };
    let older = HeaderPlan { sequence: sequence - 1, ..header };
    let log_elsewhere = |header| HeaderPlan { log_id: OLD_LOG_ID, log_offset: 1 << 52, ..header };
    let [mut current, mut other] = HEADERS.map(HostOffset::new);
    if form.second_header_counts() {
        (current, other) = (other, current);
    }
    image.write(current, &header.encode());
    match form.other_header() {
        OtherHeader::Older => image.write(other, &older.encode()),
        OtherHeader::OtherLog => image.write(other, &log_elsewhere(older).encode()),
        OtherHeader::Broken => {
            let newer = HeaderPlan { sequence: sequence + 1, ..header };
            let mut bytes = log_elsewhere(newer).encode();
            bytes[4] ^= 1;
            image.write(other, &bytes);
        }
        OtherHeader::Zeros => {}
    }
    if form.has_old_log() {
        image.write(HostOffset::new(regions.log), &encoding::old_log_entry());
    }
}

fn write_region_tables(
    image: &mut Image,
    form: VhdxForm,
    regions: &RegionOffsets,
    table_bytes: u64,
) {
    let RegionOffsets { table, metadata, unknown, .. } = *regions;
    let is_reversed = form.is_reversed();
    let table = (table, table_bytes);
    let bytes = RegionTablePlan { table, metadata, unknown, is_reversed }.encode();
    for offset in REGION_TABLES {
        image.write(HostOffset::new(offset), &bytes);
    }
}

fn write_metadata(image: &mut Image, form: VhdxForm, builder: &Builder, region: u64) {
    let plan = builder.plan();
    let metadata = MetadataPlan {
        block_bytes: u32::try_from(plan.geometry.cluster_size.bytes()).unwrap_or(u32::MAX),
        is_fixed: form.is_fixed(),
        size_bytes: plan.virtual_size_bytes().max(SECTOR_BYTES.into()),
        physical_sector_bytes: form.physical_sector_bytes(),
        decoration: form.decoration(),
        has_unknown: form.has_unknown(),
        is_reversed: form.is_reversed(),
        gap_bytes: form.item_gap_bytes(),
    };
    metadata.encode(|offset, bytes| {
        image.write(HostOffset::new(region.saturating_add(offset)), bytes);
    });
}

/// Writes the blocks for which the file has room. Returns the byte behind the last one.
fn write_blocks(
    image: &mut Image,
    builder: &Builder,
    mapped: &[MappedCluster],
    places: &BlockPlaces,
) -> u64 {
    let block = builder.plan().geometry.cluster_size;
    let mut end = 0;
    for MappedCluster { cluster, mapping } in mapped {
        let (ClusterMapping::Normal(host, _) | ClusterMapping::Zero(Some(host))) = *mapping else {
            continue;
        };
        let start = places.start_of(block, host);
        let at = HostOffset::new(start);
        match *mapping {
            ClusterMapping::Normal(_, write) => builder.write_cluster(image, *cluster, at, write),
            _ => image.write(at, &STALE),
        }
        end = end.max(start.saturating_add(block.bytes()));
    }
    end
}

/// The number of sectors whose blocks are followed by an entry for a sector bitmap.
const CHUNK_SECTORS: u64 = 1 << 23;
const BAT_ENTRY_BYTES: usize = 8;
/// The number of entries that are written together. Pages without a block stay holes, except for the first one.
const PAGE_ENTRIES: u64 = 16;
const PAGE_BYTES: usize = PAGE_ENTRIES as usize * BAT_ENTRY_BYTES;

/// The shape of a table.
struct TableShape {
    block: ClusterSize,
    /// The number of blocks between two entries for sector bitmaps.
    chunk_blocks: u64,
    /// The number of entries that the disk needs. Blocks past its end have entries behind them.
    pub entries: u64,
}

impl TableShape {
    /// Returns the shape of the table of a disk, which has at least one block.
    pub fn new(builder: &Builder) -> Self {
        let block = builder.plan().geometry.cluster_size;
        let chunk_blocks = ((CHUNK_SECTORS * u64::from(SECTOR_BYTES)) >> block.bits()).max(1);
        let mut table = Self { block, chunk_blocks, entries: 0 };
        table.entries = table.index_of(builder.guest_clusters().saturating_sub(1)) + 1;
        table
    }

    /// Returns the index of the entry of a block.
    fn index_of(&self, block: u64) -> u64 {
        block + block / self.chunk_blocks
    }

    /// Writes the entries of `mapped`, which are sorted, and of the blocks around them.
    pub fn write(
        &self,
        image: &mut Image,
        region: HostOffset,
        mapped: &[MappedCluster],
        form: VhdxForm,
        places: &BlockPlaces,
    ) {
        let page_of = |mapped: &MappedCluster| self.index_of(mapped.cluster.get()) / PAGE_ENTRIES;
        if mapped.first().is_none_or(|first| page_of(first) > 0) {
            self.absent_page(image, region, 0, form);
        }
        for page in mapped.chunk_by(|here, then| page_of(here) == page_of(then)) {
            let first = page_of(&page[0]) * PAGE_ENTRIES;
            let out = self.absent_page(image, region, first, form);
            for mapped in page {
                let index = self.index_of(mapped.cluster.get()) - first;
                let entry = self.entry(mapped.mapping, places);
                out[index as usize * BAT_ENTRY_BYTES..][..BAT_ENTRY_BYTES]
                    .copy_from_slice(&entry.to_le_bytes());
            }
        }
    }

    /// Writes the entries from `first` on as those of blocks that the file does not store. Returns their bytes.
    fn absent_page<'i>(
        &self,
        image: &'i mut Image,
        region: HostOffset,
        first: u64,
        form: VhdxForm,
    ) -> &'i mut [u8] {
        let at = region + first * BAT_ENTRY_BYTES as u64;
        let out = image.place(at, PAGE_BYTES);
        let chunk = self.chunk_blocks;
        for (index, entry) in (first..self.entries).zip(out.chunks_exact_mut(BAT_ENTRY_BYTES)) {
            // The entry of a sector bitmap, which only disks with a parent have, is 0.
            if index % (chunk + 1) != chunk {
                entry.copy_from_slice(&(form.absent_state(index) as u64).to_le_bytes());
            }
        }
        out
    }

    fn entry(&self, mapping: ClusterMapping, places: &BlockPlaces) -> u64 {
        let with = |host, state: EntryState| places.start_of(self.block, host) | state as u64;
        match mapping {
            ClusterMapping::Normal(host, _) => with(host, EntryState::Present),
            ClusterMapping::Zero(Some(host)) => with(host, EntryState::Zero),
            ClusterMapping::Zero(None) => EntryState::Zero as u64,
            // Images of this format have no others.
            ClusterMapping::Unallocated
            | ClusterMapping::Compressed(_)
            | ClusterMapping::Extended(_) => EntryState::NotPresent as u64,
        }
    }
}

/// The attacks on VHDX: 2 fields of the file's identifier, and 11 of each header; region tables of 2 entries; items in
/// the usual order.
pub const ATTACKS: &[&[FieldChange]] = &[
    &[header(5, Transform::Set, 0), header(27, Transform::Set, 0)],
    &[header(6, Transform::Add, 1), header(28, Transform::Add, 1)],
    &[header(21, Transform::Set, 2), header(43, Transform::Set, 2)],
    &[
        header(9, Transform::Set, 7),
        header(31, Transform::Set, 7),
        header(11, Transform::Set, 3),
        header(33, Transform::Set, 4),
    ],
    &[header(25, Transform::Misalign, 0), header(47, Transform::Misalign, 0)],
    &[
        header(15, Transform::Set, 1),
        header(37, Transform::Set, 1),
        header(19, Transform::Set, 1),
        header(41, Transform::Set, 1),
    ],
    &[
        header(15, Transform::Set, 1),
        header(37, Transform::Set, 1),
        header(23, Transform::Add, 1),
        header(45, Transform::Add, 1),
    ],
    &[set(Part::Directory, 1, 0), set(Part::Directory, 27, 0)],
    &[set(Part::Directory, 2, 0), set(Part::Directory, 28, 0)],
    &[set(Part::Directory, 5, 2048), set(Part::Directory, 31, 2048)],
    // Both regions become long.
    &[
        (Part::Directory, 13, Transform::Boundary, 15),
        (Part::Directory, 39, Transform::Boundary, 15),
        (Part::Directory, 23, Transform::Boundary, 15),
        (Part::Directory, 49, Transform::Boundary, 15),
    ],
    &[set(Part::Directory, 7, 0), set(Part::Directory, 33, 0)],
    &[
        set(Part::Directory, 7, 0),
        set(Part::Directory, 33, 0),
        set(Part::Directory, 15, 0),
        set(Part::Directory, 41, 0),
    ],
    &[item(0, Transform::Set, 0)],
    &[item(2, Transform::Set, 2048)],
    &[item(4, Transform::Set, 0)],
    &[item(4, Transform::Set, 0), item(12, Transform::Set, 0)],
    &[item(16, Transform::Flip, 1)],
    &[item(14, Transform::Add, 1)],
    &[item(54, Transform::Set, 1024)],
    &[item(28, Transform::Boundary, 16)],
    &[item(28, Transform::Boundary, 3), item(28, Transform::AddClusters, 1)],
    &[entry(Transform::PastEnd, 100)],
    &[entry(Transform::Structure, 70)],
    // States 4 and 7.
    &[entry(Transform::Flip, 1)],
    &[entry(Transform::Flip, 0)],
];
