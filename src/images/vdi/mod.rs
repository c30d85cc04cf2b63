//! VDI images. The builder of qcow2 images places the blocks, and this module writes the bytes of the file. It also
//! defines the attacks that make QEMU refuse an image, and the rules by which readers refuse images. All numbers are
//! little-endian.

pub(in crate::images) mod facts;

use std::sync::LazyLock;

use crate::base::features::{Feature, FeatureSet};
use crate::base::reasons::FormatMessages;
use crate::disk::clusters::ClusterSize;
use crate::disk::image_format::ImageFormat;
use crate::disk::observer::{Event, Observer};
use crate::disk::offsets::HostOffset;
use crate::formats::anatomy::{ByteOrder, Part, StructureField};
use crate::formats::vdi::constants::{
    MAX_VDI_BLOCKS, TYPE_STATIC, VDI_BLOCK_BYTES, VDI_DISCARDED, VDI_HEADER_BYTES,
    VDI_SECTOR_BYTES, VDI_SIGNATURE, VDI_VERSION, header,
};

use super::content::unstamped::EntryForm;
use super::damage::attacks::FieldList;
use super::damage::rules::{BrokenEntry, BrokenRule, Bytes};
use super::damage::{FieldChange, Transform};
use super::files::LayerFiles;
use super::files::image::Image;
use super::format::file_plan::{BlockPlaces, FilePlan, TableReach};
use super::format::{
    BuildBuffers, CreateOption, ImageDrawer, NewLayer, PlainForm, fold_bit, put_fields,
};
use super::qcow2::tables::ClusterMapping;
use super::qcow2::{
    BLOCK_ENTRY_BYTES, Builder, ImagePlan, MappedCluster, report_structures, write_table,
};

/// The block map of a static image: block 0, block 1 and so on.
static ALL_BLOCKS: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..MAX_MAP_ENTRIES as u32).flat_map(u32::to_le_bytes).collect());

/// The features of a dynamic and of a static image.
const VDI_KINDS: [Feature; 2] = [Feature::DynamicVdi, Feature::StaticVdi];

/// The drawer of the format.
pub struct Drawer;

impl ImageDrawer for Drawer {
    fn block_size(&self, _cluster_bits: u32) -> ClusterSize {
        VdiForm::block_size()
    }

    fn plan(&self, form: u16, reach: TableReach, _block: ClusterSize) -> FilePlan {
        VdiForm::new(form, reach).plan()
    }

    fn features(&self, plan: &ImagePlan) -> FeatureSet {
        FeatureSet::of(&[VDI_KINDS[usize::from(VdiForm::of(&plan.file).is_static())]])
    }

    fn fold_form(&self, form: u16, _block: ClusterSize, lacking: FeatureSet) -> u16 {
        fold_bit(form, VdiForm::STATIC_BIT, VDI_KINDS, lacking)
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
        let form = VdiForm::of(file);
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
        open_rules().collect()
    }

    fn entry_rules(&self) -> &'static [BrokenRule] {
        &[]
    }

    fn qemu_limits(&self) -> &'static [BrokenRule] {
        VDI_LIMITS
    }

    fn broken_at_open(&self, image: &Image) -> Option<BrokenRule> {
        broken_at_open(image)
    }

    fn broken_by_specification(
        &self,
        files: &LayerFiles,
        _below: Option<&LayerFiles>,
    ) -> Option<BrokenRule> {
        has_wrong_count(&files.image).then_some("VDI number of stored blocks")
    }

    fn broken_entries(&self, _image: &Image, _take: &mut dyn FnMut(BrokenEntry)) {}

    fn has_signature(&self, image: &Image, _rule: BrokenRule) -> bool {
        has_signature(image)
    }

    fn create_options(&self) -> &'static [CreateOption] {
        const STATIC: &[&str] = &["off", "off", "on"];
        &[CreateOption { name: "static", values: STATIC, of_large_disk: Some("off") }]
    }

    fn created_block_bytes(&self) -> u64 {
        VDI_BLOCK_BYTES
    }

    fn name_below(&self) -> &'static str {
        "qcow2 on a VDI disk"
    }

    fn plain_forms(&self) -> &'static [PlainForm] {
        const FORMS: &[PlainForm] = &[
            PlainForm::of_two_blocks("dynamic VDI disk", "size=8<<20+0", 0),
            PlainForm::of_two_blocks("static VDI disk", "size=8<<20+0", 1),
            PlainForm::of_two_blocks("VDI size inside a sector", "size=8<<20+700", 0),
            PlainForm::of_two_ends("VDI disk of 5 GiB", "size=5<<30+0", 0),
        ];
        FORMS
    }

    fn attacks(&self) -> &'static [&'static [FieldChange]] {
        ATTACKS
    }

    fn messages(&self) -> FormatMessages {
        facts::FORMAT_MESSAGES
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

/// The largest numbers of entries in the block map.
pub const MAX_MAP_ENTRIES: u64 = 1 << 14;
const MAX_LARGE_MAP_ENTRIES: u64 = 1 << 20;

/// The variety of a VDI image, which the bits of a program's `form` select. If all bits are 0, the image is as QEMU
/// writes it, except for the room that the block map has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VdiForm {
    bits: u16,
    reach: TableReach,
}

impl VdiForm {
    /// The bit of static images.
    const STATIC_BIT: u32 = 0;

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

    /// Reports whether the image is static: it stores all blocks, in the order of the disk.
    pub const fn is_static(self) -> bool {
        self.bits(Self::STATIC_BIT, 1) != 0
    }

    /// Returns the host offset of the block map.
    pub const fn map_offset(self) -> u64 {
        VDI_HEADER_BYTES as u64 + self.bits(1, 2) * VDI_SECTOR_BYTES
    }

    /// Returns the host offset of block 0.
    pub const fn data_offset(self) -> u64 {
        let map = self.max_entries() * BLOCK_ENTRY_BYTES;
        self.map_offset() + map + self.bits(3, 2) * VDI_SECTOR_BYTES
    }

    /// Returns the number of the text at the beginning of the file, from 0 to 3.
    pub const fn text(self) -> usize {
        self.bits(5, 2) as usize
    }

    /// Reports whether the header has the fields that later versions of VirtualBox add at its end.
    pub const fn has_long_header(self) -> bool {
        self.bits(7, 1) != 0
    }

    /// Returns a byte for the fields that no reader needs.
    pub const fn decoration(self) -> u8 {
        self.bits(8, 8) as u8
    }

    /// Returns the largest number of entries. A static image has all of them in its file.
    const fn max_entries(self) -> u64 {
        match self.reach {
            TableReach::Large if !self.is_static() => MAX_LARGE_MAP_ENTRIES,
            _ => MAX_MAP_ENTRIES,
        }
    }

    /// Returns the plan of the file.
    pub fn plan(self) -> FilePlan {
        let places = BlockPlaces {
            first_bytes: self.data_offset(),
            stride_bytes: VDI_BLOCK_BYTES,
            lead_bytes: 0,
            guest_clusters: self.max_entries(),
            // The number of a block in the file must be less than the number of entries.
            host_clusters: self.max_entries(),
        };
        FilePlan {
            format: ImageFormat::Vdi,
            form: self.bits,
            reach: self.reach,
            places: Some(places),
            flat_at: self.is_static().then_some(HostOffset::new(self.data_offset())),
            ..FilePlan::default()
        }
    }

    /// Returns the size of a block.
    pub fn block_size() -> ClusterSize {
        ClusterSize::from_bits(VDI_BLOCK_BYTES.ilog2()).unwrap_or(ClusterSize::SMALLEST)
    }
}

/// The type of an image that stores some blocks.
const VDI_DYNAMIC: u64 = 1;

/// The texts at the beginning of files, of QEMU and of VirtualBox over time.
const TEXTS: [&str; 4] = [
    "<<< QEMU VM Virtual Disk Image >>>\n",
    "<<< innotek VirtualBox Disk Image >>>\n",
    "<<< Sun VirtualBox Disk Image >>>\n",
    "<<< Oracle VM VirtualBox Disk Image >>>\n",
];

/// The numbers that a header states.
#[derive(Clone, Copy, Debug)]
pub struct HeaderFields {
    /// The size of the disk.
    pub size_bytes: u64,
    /// The number of entries of the block map.
    pub entries: u64,
    /// The number of stored blocks.
    pub allocated: u64,
}

impl HeaderFields {
    /// Returns the bytes of the header of an image of this form.
    pub fn encode(&self, form: VdiForm) -> [u8; VDI_HEADER_BYTES] {
        let mut bytes = [0; VDI_HEADER_BYTES];
        let text = TEXTS[form.text()].as_bytes();
        bytes[..text.len()].copy_from_slice(text);
        let decoration = form.decoration();
        let numbers = [
            (header::SIGNATURE, VDI_SIGNATURE.into()),
            (header::VERSION, VDI_VERSION.into()),
            (header::HEADER_SIZE, if form.has_long_header() { 400 } else { 384 }),
            (header::IMAGE_TYPE, if form.is_static() { TYPE_STATIC.into() } else { VDI_DYNAMIC }),
            (header::IMAGE_FLAGS, u64::from(decoration & 3)),
            (header::OFFSET_BMAP, form.map_offset()),
            (header::OFFSET_DATA, form.data_offset()),
            (header::SECTOR_SIZE, VDI_SECTOR_BYTES),
            (header::DISK_SIZE, self.size_bytes),
            (header::BLOCK_SIZE, VDI_BLOCK_BYTES),
            (header::BLOCKS_IN_IMAGE, self.entries),
            (header::BLOCKS_ALLOCATED, self.allocated),
            (header::UUID_IMAGE, u64::from_le_bytes([decoration; 8])),
            (header::UUID_LAST_SNAP, u64::from_le_bytes([decoration / 2; 8])),
        ];
        put_fields(&mut bytes, ByteOrder::LittleEndian, &numbers);
        bytes
    }
}

/// The value of a field in the image that is judged.
type FieldValue<'n> = &'n dyn Fn(StructureField) -> u64;

/// A rule, and the test of an image that breaks it.
type VdiRule = (BrokenRule, fn(FieldValue) -> bool);

const MAX_BYTES: u64 = MAX_VDI_BLOCKS as u64 * VDI_BLOCK_BYTES;

/// The rules about images, in the order of QEMU's checks (`block/vdi.c`, `vdi_open`). QEMU accepts any entry of the
/// block map.
const RULES: &[VdiRule] = &[
    (SIZE_LIMIT, |number| number(header::DISK_SIZE) > MAX_BYTES),
    (SIGNATURE, |number| number(header::SIGNATURE) != u64::from(VDI_SIGNATURE)),
    ("VDI version", |number| number(header::VERSION) != u64::from(VDI_VERSION)),
    ("VDI offset of the block map", |number| {
        !number(header::OFFSET_BMAP).is_multiple_of(VDI_SECTOR_BYTES)
    }),
    ("VDI offset of the data", |number| {
        !number(header::OFFSET_DATA).is_multiple_of(VDI_SECTOR_BYTES)
    }),
    ("VDI sector size", |number| number(header::SECTOR_SIZE) != VDI_SECTOR_BYTES),
    (BLOCK_SIZE, |number| number(header::BLOCK_SIZE) != VDI_BLOCK_BYTES),
    ("VDI block map below the size", |number| {
        number(header::DISK_SIZE) > number(header::BLOCKS_IN_IMAGE) * VDI_BLOCK_BYTES
    }),
    ("VDI link", |number| number(header::UUID_LINK) != 0 || number(header::UUID_LINK_END) != 0),
    ("VDI parent", |number| {
        number(header::UUID_PARENT) != 0 || number(header::UUID_PARENT_END) != 0
    }),
    (BLOCKS_LIMIT, |number| number(header::BLOCKS_IN_IMAGE) > u64::from(MAX_VDI_BLOCKS)),
];

const SIGNATURE: BrokenRule = "VDI signature";
const SIZE_LIMIT: BrokenRule = "VDI size above 512 TiB";
const BLOCK_SIZE: BrokenRule = "VDI block size";
const BLOCKS_LIMIT: BrokenRule = "VDI number of blocks";

/// The rules that are limits of QEMU (`block/vdi.c`): VirtualBox has blocks of other sizes, too.
const VDI_LIMITS: &[BrokenRule] = &[SIZE_LIMIT, BLOCK_SIZE, BLOCKS_LIMIT];

/// Returns the names of the rules.
fn open_rules() -> impl Iterator<Item = BrokenRule> {
    RULES.iter().map(|(name, _)| *name)
}

/// Returns the first rule that an image breaks.
fn broken_at_open(image: &Image) -> Option<BrokenRule> {
    let bytes = Bytes::new(image);
    let number = |field: StructureField| number_of(bytes, field);
    RULES.iter().find(|(_, is_broken)| is_broken(&number)).map(|(name, _)| *name)
}

/// Reports whether the header states another number of stored blocks than the block map names. QEMU opens the image.
fn has_wrong_count(image: &Image) -> bool {
    let bytes = Bytes::new(image);
    let number = |field| number_of(bytes, field);
    let map = (number(header::OFFSET_BMAP), number(header::BLOCKS_IN_IMAGE));
    let mut stored = 0;
    bytes.each_entry(map, [0xff; 4], |_, entry| {
        stored += u64::from(u32::from_le_bytes(entry) != VDI_DISCARDED);
    });
    stored != number(header::BLOCKS_ALLOCATED)
}

/// Reports whether a file has the signature.
fn has_signature(image: &Image) -> bool {
    number_of(Bytes::new(image), header::SIGNATURE) == u64::from(VDI_SIGNATURE)
}

/// Returns the number in a field.
fn number_of(bytes: Bytes<'_>, field: StructureField) -> u64 {
    bytes.little_field(0, field)
}

const fn vdi_field(field: StructureField, transform: Transform, value: u16) -> FieldChange {
    FieldList::new(Part::Header, header::FIELDS).change(field, transform, value)
}

/// The attacks of known meaning.
pub const ATTACKS: &[&[FieldChange]] = &[
    &[vdi_field(header::DISK_SIZE, Transform::Boundary, 17)],
    &[vdi_field(header::VERSION, Transform::Add, 1)],
    &[vdi_field(header::OFFSET_BMAP, Transform::Add, 1)],
    &[vdi_field(header::OFFSET_DATA, Transform::Add, 1)],
    &[vdi_field(header::SECTOR_SIZE, Transform::Set, 1024)],
    &[vdi_field(header::BLOCK_SIZE, Transform::Set, 4096)],
    &[vdi_field(header::BLOCKS_IN_IMAGE, Transform::Set, 0)],
    &[vdi_field(header::UUID_LINK, Transform::Set, 1)],
    &[vdi_field(header::UUID_PARENT_END, Transform::Set, 1)],
    &[vdi_field(header::BLOCKS_IN_IMAGE, Transform::Boundary, 15)],
];
