//! VHDX images. The builder of qcow2 images places the blocks, and this module writes the bytes of the file.

mod encoding;
pub(in crate::images) mod facts;
mod form;
mod rules;
mod specification;

use std::ops::Range;

use crate::base::features::{Feature, FeatureSet};
use crate::base::reasons::FormatMessages;
use crate::disk::clusters::ClusterSize;
use crate::disk::observer::{Event, Observer};
use crate::disk::offsets::HostOffset;
use crate::formats::anatomy::{Part, StructureField};
use crate::formats::vhdx::constants::{
    BAT_ENTRY_BYTES, CHUNK_BYTES, GUEST_SECTOR_BYTES, REGION_TABLE_OFFSETS, VHDX_HEADER_OFFSETS,
    content, file_identifier, header, metadata_item, metadata_table, rare, region, region_table,
};

use super::content::unstamped::EntryForm;
use super::damage::attacks::{FieldList, entry};
use super::damage::rules::{BrokenEntry, BrokenRule};
use super::damage::{FieldChange, Transform};
use super::files::LayerFiles;
use super::files::image::Image;
use super::format::file_plan::{BlockPlaces, FilePlan, TableReach};
use super::format::{BuildBuffers, CreateOption, ImageDrawer, NewLayer, PlainForm, fold_bit};
use super::qcow2::tables::ClusterMapping;
use super::qcow2::{Builder, ImagePlan, MappedCluster, report_structures};
use encoding::{FILE_IDENTIFIER, HeaderPlan, MetadataPlan, OLD_LOG_ID};
use form::{EntryState, OtherHeader, RegionOffsets, SPARE_FILE_BYTES, VhdxForm};

/// The features of a dynamic and of a fixed image.
const VHDX_KINDS: [Feature; 2] = [Feature::DynamicVhdx, Feature::FixedVhdx];

/// The drawer of the format.
pub struct Drawer;

impl ImageDrawer for Drawer {
    fn block_size(&self, cluster_bits: u32) -> ClusterSize {
        form::block_size(cluster_bits)
    }

    fn plan(&self, form: u16, reach: TableReach, block: ClusterSize) -> FilePlan {
        VhdxForm::new(form, reach).plan(block)
    }

    fn features(&self, plan: &ImagePlan) -> FeatureSet {
        FeatureSet::of(&[VHDX_KINDS[usize::from(VhdxForm::of(&plan.file).is_fixed())]])
    }

    fn fold_form(&self, form: u16, _block: ClusterSize, lacking: FeatureSet) -> u16 {
        fold_bit(form, VhdxForm::FIXED_BIT, VHDX_KINDS, lacking)
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

    fn name_below(&self) -> &'static str {
        "qcow2 on a VHDX disk"
    }

    fn plain_forms(&self) -> &'static [PlainForm] {
        const FORMS: &[PlainForm] = &[
            PlainForm::of_two_blocks("dynamic VHDX disk", "cluster_bits=9 size=8<<20+0", 0),
            PlainForm::of_two_blocks("fixed VHDX disk", "cluster_bits=9 size=8<<20+0", 1 << 13),
            PlainForm::of_two_ends("VHDX disk of 5 GiB", "cluster_bits=9 size=5<<30+0", 0),
        ];
        FORMS
    }

    fn attacks(&self) -> &'static [&'static [FieldChange]] {
        ATTACKS
    }

    fn misread_blocks(&self) -> Option<Range<HostOffset>> {
        Some(HostOffset::new(1 << 20)..HostOffset::new(256 << 20))
    }

    fn messages(&self) -> FormatMessages {
        facts::FORMAT_MESSAGES
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
    let region_table = encoding::region_table(form, &regions, length);
    for offset in REGION_TABLE_OFFSETS {
        image.write(HostOffset::new(offset), &region_table);
    }
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
        (Some(VHDX_HEADER_OFFSETS[0]), header),
        (Some(regions.log), Event::Log),
        (Some(regions.table), Event::Table),
        (Some(regions.metadata), Event::Metadata),
        (blocks, Event::Block),
    ];
    report_structures(structures, observer);
    if form.has_old_log() {
        observer.rare(rare::OLD_LOG);
    }
    if form.has_unknown() {
        observer.rare(rare::UNKNOWN);
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
    let [mut current, mut other] = VHDX_HEADER_OFFSETS.map(HostOffset::new);
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

fn write_metadata(image: &mut Image, form: VhdxForm, builder: &Builder, region: u64) {
    let plan = builder.plan();
    let metadata = MetadataPlan {
        form,
        block_bytes: u32::try_from(plan.geometry.cluster_size.bytes()).unwrap_or(u32::MAX),
        size_bytes: plan.virtual_size_bytes().max(GUEST_SECTOR_BYTES.into()),
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
        let chunk_blocks = (CHUNK_BYTES >> block.bits()).max(1);
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

/// The fields of both headers, behind those of the file's identifier.
const HEADERS: [FieldList; 2] = {
    let first = FieldList::new(Part::Header, file_identifier::FIELDS).behind(header::FIELDS);
    [first, first.behind(header::FIELDS)]
};
/// The fields of both region tables, and of their two entries.
const REGION_HEADS: [FieldList; 2] = {
    let first = FieldList::new(Part::Directory, region_table::FIELDS);
    let last_entry = first.behind(region::FIELDS).behind(region::FIELDS);
    [first, last_entry.behind(region_table::FIELDS)]
};
const FIRST_REGIONS: [FieldList; 2] = behind(REGION_HEADS, region::FIELDS);
const SECOND_REGIONS: [FieldList; 2] = behind(FIRST_REGIONS, region::FIELDS);
/// The fields of the metadata: of the table, and of the first items in the usual order, each with its content.
const METADATA: FieldList = FieldList::new(Part::Metadata, metadata_table::FIELDS);
const FIRST_ITEM_FIELDS: FieldList = METADATA.behind(metadata_item::FIELDS);
const PARAMETERS: FieldList =
    FIRST_ITEM_FIELDS.behind(&[content::BLOCK_SIZE, content::FILE_PARAMETERS]);
const DISK_SIZE: FieldList =
    PARAMETERS.behind(metadata_item::FIELDS).behind(&[content::VIRTUAL_DISK_SIZE]);
const DISK_ID: FieldList = DISK_SIZE
    .behind(metadata_item::FIELDS)
    .behind(&[content::PAGE_83_DATA, content::PAGE_83_DATA_END]);
const SECTOR_SIZE: FieldList =
    DISK_ID.behind(metadata_item::FIELDS).behind(&[content::LOGICAL_SECTOR_SIZE]);

const fn behind([one, other]: [FieldList; 2], fields: &'static [StructureField]) -> [FieldList; 2] {
    [one.behind(fields), other.behind(fields)]
}

/// Returns the change of a field in both copies of a structure, with correct checksums.
const fn both(
    [one, other]: [FieldList; 2],
    field: StructureField,
    transform: Transform,
    value: u16,
) -> [FieldChange; 2] {
    [one.sealed(field, transform, value), other.sealed(field, transform, value)]
}

const fn and([a, b]: [FieldChange; 2], [c, d]: [FieldChange; 2]) -> [FieldChange; 4] {
    [a, b, c, d]
}

/// The attacks on VHDX.
pub const ATTACKS: &[&[FieldChange]] = {
    use Transform::{Add, AddClusters, Boundary, Flip, Misalign, PastEnd, Set, Structure};
    const LOG: [FieldChange; 2] = both(HEADERS, header::LOG_GUID, Set, 1);
    const NO_TABLE: [FieldChange; 2] = both(FIRST_REGIONS, region::GUID, Set, 0);
    const FIRST: FieldList = HEADERS[0];
    const SECOND: FieldList = HEADERS[1];
    &[
        &both(HEADERS, header::SIGNATURE, Set, 0),
        &[FIRST.change(header::CHECKSUM, Add, 1), SECOND.change(header::CHECKSUM, Add, 1)],
        &both(HEADERS, header::VERSION, Set, 2),
        &[
            FIRST.sealed(header::SEQUENCE_NUMBER, Set, 7),
            SECOND.sealed(header::SEQUENCE_NUMBER, Set, 7),
            FIRST.sealed(header::FILE_WRITE_GUID, Set, 3),
            SECOND.sealed(header::FILE_WRITE_GUID, Set, 4),
        ],
        &both(HEADERS, header::LOG_OFFSET, Misalign, 0),
        &and(LOG, both(HEADERS, header::LOG_VERSION, Set, 1)),
        &and(LOG, both(HEADERS, header::LOG_LENGTH, Add, 1)),
        &both(REGION_HEADS, region_table::SIGNATURE, Set, 0),
        &[
            REGION_HEADS[0].change(region_table::CHECKSUM, Set, 0),
            REGION_HEADS[1].change(region_table::CHECKSUM, Set, 0),
        ],
        &both(REGION_HEADS, region_table::ENTRY_COUNT, Set, 2048),
        // Both regions become long.
        &and(
            both(FIRST_REGIONS, region::LENGTH, Boundary, 15),
            both(SECOND_REGIONS, region::LENGTH, Boundary, 15),
        ),
        &NO_TABLE,
        &and(NO_TABLE, both(FIRST_REGIONS, region::REQUIRED, Set, 0)),
        &[METADATA.change(metadata_table::SIGNATURE, Set, 0)],
        &[METADATA.change(metadata_table::ENTRY_COUNT, Set, 2048)],
        &[FIRST_ITEM_FIELDS.change(metadata_item::ITEM_ID, Set, 0)],
        &[
            FIRST_ITEM_FIELDS.change(metadata_item::ITEM_ID, Set, 0),
            FIRST_ITEM_FIELDS.change(metadata_item::FLAGS, Set, 0),
        ],
        &[PARAMETERS.change(content::FILE_PARAMETERS, Flip, 1)],
        &[PARAMETERS.change(content::BLOCK_SIZE, Add, 1)],
        &[SECTOR_SIZE.change(content::LOGICAL_SECTOR_SIZE, Set, 1024)],
        &[DISK_SIZE.change(content::VIRTUAL_DISK_SIZE, Boundary, 16)],
        &[
            DISK_SIZE.change(content::VIRTUAL_DISK_SIZE, Boundary, 3),
            DISK_SIZE.change(content::VIRTUAL_DISK_SIZE, AddClusters, 1),
        ],
        &[entry(PastEnd, 100)],
        &[entry(Structure, 70)],
        // States 4 and 7.
        &[entry(Flip, 1)],
        &[entry(Flip, 0)],
    ]
};
