//! VHD images, which QEMU calls vpc. The builder of qcow2 images places the blocks. This module defines the varieties
//! of images, and writes the bytes of the file.

mod encoding;
pub(in crate::images) mod facts;
mod rules;

use crate::base::features::{Feature, FeatureSet};
use crate::base::reasons::FormatMessages;
use crate::disk::clusters::{ClusterSize, GuestCluster};
use crate::disk::image_format::ImageFormat;
use crate::disk::observer::{Event, Observer};
use crate::disk::offsets::HostOffset;
use crate::formats::anatomy::Part;
use crate::formats::vpc::constants::{
    COOKIE, DYNAMIC_HEADER_BYTES, FOOTER_BYTES, MAX_SECTORS, SECTOR_BYTES, dynamic_header, footer,
};

use super::content::unstamped::EntryForm;
use super::damage::attacks::{FieldList, entry};
use super::damage::rules::{BrokenEntry, BrokenRule};
use super::damage::{FieldChange, Transform};
use super::files::LayerFiles;
use super::files::image::Image;
use super::format::file_plan::{BlockPlaces, FilePlan, TableReach};
use super::format::{BuildBuffers, CreateOption, ImageDrawer, NewLayer, PlainForm, fold_bit};
use super::qcow2::{
    BLOCK_ENTRY_BYTES, Builder, ImagePlan, MappedCluster, ONES, report_structures, write_table,
};
use encoding::{FooterFields, bitmap_bytes};

/// The features of a dynamic and of a fixed image.
const VPC_KINDS: [Feature; 2] = [Feature::DynamicVpc, Feature::FixedVpc];

/// Log2 of the smallest block whose bitmap has a sector in QEMU (`block/vpc.c`, `vpc_open`).
const MIN_BITMAP_BLOCK_BITS: u32 = 12;

/// The drawer of the format.
pub struct Drawer;

impl ImageDrawer for Drawer {
    fn plan(&self, form: u16, reach: TableReach, block: ClusterSize) -> FilePlan {
        VpcForm::new(form, reach).plan(block)
    }

    fn large_disk_cluster_bits(&self) -> u8 {
        17
    }

    fn features(&self, plan: &ImagePlan) -> FeatureSet {
        let form = VpcForm::of(&plan.file);
        let mut features = FeatureSet::of(&[VPC_KINDS[usize::from(form.is_fixed())]]);
        let is_lost = !form.is_fixed() && !form.has_footer_at_end();
        features.add_if(is_lost, Feature::LostFooter);
        let is_small = plan.geometry.cluster_size.bits() < MIN_BITMAP_BLOCK_BITS;
        features.add_if(is_small && !form.is_fixed(), Feature::BlocksBelow4K);
        features
    }

    fn fold_form(&self, form: u16, _block: ClusterSize, lacking: FeatureSet) -> u16 {
        let form = fold_bit(form, VpcForm::FIXED_BIT, VPC_KINDS, lacking);
        match lacking.has(Feature::LostFooter) {
            true => form & !(1 << VpcForm::LOST_FOOTER_BIT),
            false => form,
        }
    }

    fn fold_cluster_bits(&self, lacking: FeatureSet) -> (u8, u8) {
        match lacking.has(Feature::BlocksBelow4K) {
            true => (MIN_BITMAP_BLOCK_BITS as u8, u8::MAX),
            false => (0, u8::MAX),
        }
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

    /// A VHD image must not begin with data that look like a footer. If it has no footer at its end, it must not end
    /// with such data, either.
    fn misleads(&self, file: &FilePlan, cluster: GuestCluster) -> bool {
        let form = VpcForm::of(file);
        match form.is_fixed() {
            true => cluster == GuestCluster::new(0),
            false => !form.has_footer_at_end(),
        }
    }

    fn correct_checksums(&self, file: &mut [u8]) {
        encoding::correct(file);
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

    fn qemu_limits(&self) -> &'static [BrokenRule] {
        rules::VPC_LIMITS
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
        rules::broken_by_specification(&files.image)
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

    fn name_below(&self) -> &'static str {
        "qcow2 on a VHD disk"
    }

    fn plain_forms(&self) -> &'static [PlainForm] {
        const FORMS: &[PlainForm] = &[
            PlainForm::of_two_blocks("dynamic VHD disk", "size=8<<16+0", 0),
            PlainForm::of_two_blocks("fixed VHD disk", "size=8<<16+0", 8),
            PlainForm::of_two_blocks("VHD size inside a sector", "size=8<<16+700", 0),
            PlainForm::of_two_ends("VHD disk of 5 GiB", "cluster_bits=21 size=5<<30+0", 0),
        ];
        FORMS
    }

    fn attacks(&self) -> &'static [&'static [FieldChange]] {
        ATTACKS
    }

    fn ends_like_image(&self, file: &[u8]) -> bool {
        let last = file.len().checked_sub(FOOTER_BYTES).and_then(|at| file.get(at..));
        last.is_some_and(|footer| footer.starts_with(&COOKIE))
    }

    fn begins_with_data(&self) -> bool {
        true
    }

    fn created_of_20(&self) -> u64 {
        3
    }

    fn messages(&self) -> FormatMessages {
        facts::FORMAT_MESSAGES
    }
}

/// Writes the image of `builder`, whose plan a [`VpcForm`] has made. `mapped` is a buffer.
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
    image.write(HostOffset::new(header), &encoding::dynamic_header(table, entries, block_bytes));
    let start_of = |host| places.start_of(block, host);
    let entry_of = |block: &MappedCluster| {
        let (host, _) = block.data()?;
        Some(u32::try_from(start_of(host) / SECTOR_BYTES).unwrap_or(u32::MAX).to_be_bytes())
    };
    let end = write_table(image, table, entries, mapped, entry_of);
    let bitmap = &ONES[..bitmap_bytes(block.bytes()) as usize];
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

/// Returns the footer. If the creator states the size by the geometry, and no geometry is exact, another creator takes
/// its place.
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

/// The variety of a VHD image, which the bits of a program's `form` select. If all bits are 0, the image is as QEMU
/// writes it, except for its size, which QEMU would round up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VpcForm {
    bits: u16,
    reach: TableReach,
}

/// The largest numbers of entries in a table. Readers check each of them when they open an image.
const MAX_BLOCK_ENTRIES: u64 = 1 << 14;
const MAX_LARGE_BLOCK_ENTRIES: u64 = 1 << 20;
/// The size of the largest disk: 2040 GiB.
const MAX_VHD_BYTES: u64 = MAX_SECTORS * SECTOR_BYTES;
/// The largest distance of a table from the structure before it, in bytes.
const MAX_TABLE_GAP_BYTES: u64 = 3 * SECTOR_BYTES;
/// The largest distance of the dynamic header from the footer's copy, in bytes.
const MAX_HEADER_GAP_BYTES: u64 = 3 * SECTOR_BYTES;

/// The creators of images: the first ones state the size of the disk in bytes, the last two by its geometry.
const CREATORS: [[u8; 4]; 8] =
    [*b"qem2", *b"win ", *b"d2v ", *b"tap\0", *b"CTXS", *b"wa\0\0", *b"qemu", *b"vpc "];
/// The number of creators that state the size by the geometry.
const GEOMETRY_CREATORS: usize = 2;

impl VpcForm {
    /// The image that QEMU writes.
    pub const PLAIN: Self = Self::new(0, TableReach::Small);

    /// The bit of fixed disks.
    const FIXED_BIT: u32 = 3;
    /// The bit of dynamic disks without a footer at the end.
    const LOST_FOOTER_BIT: u32 = 4;

    /// Returns the variety that the bits of `form` select, with tables of this reach.
    pub const fn new(form: u16, reach: TableReach) -> Self {
        Self { bits: form, reach }
    }

    /// Returns the variety of a file.
    pub const fn of(file: &FilePlan) -> Self {
        Self::new(file.form, file.reach)
    }

    const fn bits(self, first: u32, count: u32) -> u64 {
        (self.bits >> first & ((1 << count) - 1)) as u64
    }

    /// Returns the program that is said to have created the image.
    pub fn creator(self) -> [u8; 4] {
        CREATORS[self.bits(0, 3) as usize]
    }

    /// Reports whether the size of the disk is that of its geometry.
    pub fn states_geometry(self) -> bool {
        self.bits(0, 3) as usize >= CREATORS.len() - GEOMETRY_CREATORS
    }

    /// Reports whether the disk is fixed: its data, then a footer.
    pub const fn is_fixed(self) -> bool {
        self.bits(Self::FIXED_BIT, 1) != 0
    }

    /// Reports whether a dynamic disk has a footer at its end, too.
    pub const fn has_footer_at_end(self) -> bool {
        self.bits(Self::LOST_FOOTER_BIT, 1) == 0
    }

    /// Returns the offset of the dynamic header.
    pub const fn header_offset(self) -> u64 {
        FOOTER_BYTES as u64 + self.bits(5, 2) * SECTOR_BYTES
    }

    /// Reports whether the table lies behind the blocks.
    pub const fn has_table_at_end(self) -> bool {
        self.bits(7, 1) != 0
    }

    /// Returns the offset of the table if the blocks end at `blocks_end`.
    pub const fn table_offset(self, blocks_end: u64) -> u64 {
        let before = match self.has_table_at_end() {
            true => blocks_end,
            false => self.header_offset() + DYNAMIC_HEADER_BYTES as u64,
        };
        before + self.bits(8, 2) * SECTOR_BYTES
    }

    /// Returns a byte for the fields that no reader needs.
    pub const fn decoration(self) -> u8 {
        self.bits(10, 6) as u8
    }

    /// Returns the largest number of entries in a table. Their bytes are whole sectors.
    fn max_entries(self, block: ClusterSize) -> u64 {
        match self.reach {
            TableReach::Small => MAX_BLOCK_ENTRIES,
            TableReach::Large => MAX_LARGE_BLOCK_ENTRIES.min(MAX_VHD_BYTES / block.bytes()),
        }
    }

    /// Returns the plan of the file.
    pub fn plan(self, block: ClusterSize) -> FilePlan {
        let lead_bytes = bitmap_bytes(block.bytes());
        let stride_bytes = lead_bytes + block.bytes();
        let before = MAX_HEADER_GAP_BYTES + MAX_TABLE_GAP_BYTES;
        let structures = FOOTER_BYTES as u64 + DYNAMIC_HEADER_BYTES as u64 + before;
        let guest_clusters = self.max_entries(block);
        let table = if self.has_table_at_end() { 0 } else { guest_clusters * BLOCK_ENTRY_BYTES };
        let places = BlockPlaces {
            first_bytes: structures + table,
            stride_bytes,
            lead_bytes,
            guest_clusters,
            // Entries count sectors in 32 bits, and the last value has a meaning of its own.
            host_clusters: (u64::from(u32::MAX) * SECTOR_BYTES - structures - table) / stride_bytes,
        };
        let (format, form) = (ImageFormat::Vpc, self.bits);
        FilePlan {
            format,
            form,
            reach: self.reach,
            places: Some(places),
            flat_at: self.is_fixed().then_some(HostOffset::ZERO),
            ..FilePlan::default()
        }
    }
}

/// The fields of a dynamic disk: the footer's, those of the dynamic header, and those of the other footer.
const FOOTER_FIELDS: FieldList = FieldList::new(Part::Header, footer::FIELDS);
const DYNAMIC_FIELDS: FieldList = FOOTER_FIELDS.behind(dynamic_header::FIELDS);
const COPY_FIELDS: FieldList = DYNAMIC_FIELDS.behind(footer::FIELDS);
/// The other footer loses its checksum.
const SPOILED_COPY: FieldChange = COPY_FIELDS.change(footer::FEATURES, Transform::Set, 7);

/// The attacks on VHD.
pub const ATTACKS: &[&[FieldChange]] = {
    use Transform::{Add, Boundary, PastEnd, Set};
    &[
        &[FOOTER_FIELDS.change(footer::COOKIE, Set, 0), COPY_FIELDS.change(footer::COOKIE, Set, 0)],
        &[FOOTER_FIELDS.change(footer::COOKIE, Set, 0), SPOILED_COPY],
        &[
            FOOTER_FIELDS.change(footer::CHECKSUM, Set, 1),
            COPY_FIELDS.change(footer::CHECKSUM, Set, 1),
        ],
        // A creator that states the size in bytes, and the largest size.
        &[
            FOOTER_FIELDS.sealed(footer::CREATOR_APPLICATION, Set, 7),
            FOOTER_FIELDS.sealed(footer::CURRENT_SIZE, Boundary, 17),
            SPOILED_COPY,
        ],
        &[DYNAMIC_FIELDS.change(dynamic_header::COOKIE, Set, 0)],
        &[FOOTER_FIELDS.sealed(footer::DATA_OFFSET, PastEnd, 9), SPOILED_COPY],
        &[DYNAMIC_FIELDS.sealed(dynamic_header::BLOCK_SIZE, Set, 256)],
        &[DYNAMIC_FIELDS.sealed(dynamic_header::BLOCK_SIZE, Add, 1)],
        &[DYNAMIC_FIELDS.sealed(dynamic_header::MAX_TABLE_ENTRIES, Set, 0)],
        &[DYNAMIC_FIELDS.sealed(dynamic_header::MAX_TABLE_ENTRIES, Boundary, 15)],
        &[DYNAMIC_FIELDS.sealed(dynamic_header::TABLE_OFFSET, PastEnd, 0)],
        &[entry(PastEnd, 100)],
    ]
};
