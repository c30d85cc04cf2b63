//! The image that a program builds: the mapping of clusters, and the bytes that encode it.
//!
//! [`Builder`] is a writer of qcow2, reduced to the mapping. It is total: an operation that is not possible (the file
//! is full, a count is at its maximum) has no effect, and its return value says so. Building the image's bytes does not
//! change the builder, so a program can be built and verified at any point.

mod builder;
mod encoding;
mod header;
pub mod payload;
pub mod placement;
mod plan;
pub mod refcounts;
mod rules;
mod serialise;
mod state;
pub mod tables;

pub use builder::Builder;
pub use builder::census::Census;
pub use builder::compressed::{CompressedPlace, CompressedWrite, Packing, PayloadFrame};
pub use builder::mapped::{
    BLOCK_ENTRY_BYTES, MappedCluster, ONES, StoredData, report_structures, write_table,
};
pub use encoding::Sizes;
pub use plan::{
    BackingPlan, DataFilePlan, HeaderFlags, HeaderLength, HeaderOptions, HeaderStyle, ImagePlan,
    MAX_SIZE_BYTES, Names, NamesFormat, NamesTooLong,
};
pub use rules::EntryRules;
pub use serialise::BuildScratch;
pub use state::{FileEnd, Fill, GivenString, Leaving, NewBitmap, SnapshotDetails, VmState};

use crate::base::features::{Feature, FeatureSet};
use crate::disk::clusters::ClusterSize;
use crate::disk::image_format::ImageFormat;
use crate::disk::observer::Observer;
use crate::formats::anatomy::{Part, StructureField};
use crate::formats::qcow2::constants::{
    AUTOCLEAR_BITMAPS, AUTOCLEAR_RAW_DATA_FILE, COMPATIBLE_LAZY_REFCOUNTS,
    INCOMPATIBLE_COMPRESSION, INCOMPATIBLE_CORRUPT, INCOMPATIBLE_DATA_FILE, INCOMPATIBLE_DIRTY,
    INCOMPATIBLE_EXTENDED_L2, V3_COMPRESSION_LENGTH_BYTES, V3_LENGTH_BYTES, header as fields,
};
use crate::formats::qcow2::geometry::{Compression, Version};

use super::content::unstamped::EntryForm;
use super::damage::attacks::FieldList;
use super::damage::rules::{BrokenEntry, BrokenRule};
use super::damage::{FieldChange, Transform};
use super::files::image::Image;
use super::files::{BitmapDeclaration, Declarations, DeclaredStrings, LayerFiles, StringOwner};
use super::format::file_plan::{FilePlan, TableReach};
use super::format::{BuildBuffers, ImageDrawer, NewLayer};
use header::layout::HeaderLengths;

/// The drawer of the format. The builder itself places the structures of an image.
pub struct Drawer;

impl ImageDrawer for Drawer {
    fn plan(&self, _form: u16, _reach: TableReach, _block: ClusterSize) -> FilePlan {
        FilePlan::default()
    }

    fn build(
        &self,
        layer: NewLayer<'_>,
        buffers: &mut BuildBuffers,
        files: &mut LayerFiles,
        observer: &dyn Observer,
    ) {
        layer.builder.build(&layer.names, &mut buffers.qcow2, files, observer);
    }

    fn report_vitals(&self, builder: &Builder, buffers: &BuildBuffers, observer: &dyn Observer) {
        builder.report_vitals(&buffers.qcow2, observer);
    }

    /// An L2 entry with the bit COPIED.
    fn entry_form(&self) -> EntryForm {
        EntryForm { width_bytes: 8, is_big_endian: true, unit_bits: 0, flags: 1 << 63 }
    }

    /// The header's cluster. Larger ones are mostly empty.
    fn structure_bytes(&self, _files: usize) -> u64 {
        64 << 10
    }

    fn open_rules(&self) -> Vec<BrokenRule> {
        rules::open_rule_names().collect()
    }

    fn entry_rules(&self) -> &'static [BrokenRule] {
        &rules::ENTRY_RULES
    }

    fn qemu_limits(&self) -> &'static [BrokenRule] {
        rules::QCOW2_LIMITS
    }

    fn broken_at_open(&self, image: &Image) -> Option<BrokenRule> {
        rules::broken_at_open(image)
    }

    /// Only the entries that an attack has changed are judged, with [`EntryRules`].
    fn broken_entries(&self, _image: &Image, _take: &mut dyn FnMut(BrokenEntry)) {}

    fn has_signature(&self, _image: &Image, rule: BrokenRule) -> bool {
        ![rules::MAGIC_RULE, rules::VERSION_RULE].contains(&rule)
    }

    fn attacks(&self) -> &'static [&'static [FieldChange]] {
        ATTACKS
    }

    /// qcow2 has the most structures.
    fn created_of_20(&self) -> u64 {
        9
    }
}

/// The declarations that an image is meant to have. They come from the plan and the operations, never from a function
/// that encodes.
impl Builder {
    /// Records the declarations that the image is meant to have.
    fn declare(&self, names: &Names, declarations: &mut Declarations) {
        let plan = &self.plan;
        if let Some(backing) = plan.backing {
            declarations.backing_name.extend_from_slice(names.backing);
            declarations.backing_format = plan.names_backing_format().then_some(backing.format);
        }
        if plan.data_file.is_some() {
            declarations.data_file_name.extend_from_slice(names.data_file);
        }
        declarations.features = self.declared_features();
        let vm_states = self.snapshots.live().iter().map(|snapshot| snapshot.vm_state_bytes);
        declarations.vm_state_bytes.extend(vm_states);
        declarations.bitmaps.extend(self.bitmaps.live().iter().map(|bitmap| BitmapDeclaration {
            in_use: bitmap.in_use,
            auto: bitmap.auto,
            granularity_bits: bitmap.granularity_bits,
        }));
        self.declare_strings(names, &mut declarations.strings);
    }

    /// Records the strings that the program gives.
    fn declare_strings(&self, names: &Names, strings: &mut DeclaredStrings) {
        let mut add = |owner, string: Option<GivenString>| {
            string.into_iter().for_each(|string| strings.add(owner, self.given.string(string)));
        };
        for (index, bitmap) in self.bitmaps.live().iter().enumerate() {
            add(StringOwner::BitmapName(index), bitmap.name);
        }
        for (index, snapshot) in self.snapshots.live().iter().enumerate() {
            add(StringOwner::SnapshotId(index), snapshot.details.id);
            add(StringOwner::SnapshotName(index), snapshot.details.name);
        }
        if let Some(kind) = self.given_extension_kind(names) {
            add(StringOwner::Extension(kind), self.plan.extension_body);
        }
    }

    /// Returns the known feature bits: incompatible, compatible, autoclear.
    fn declared_features(&self) -> [u64; 3] {
        let plan = &self.plan;
        let has_bitmaps = self.bitmaps.live > 0 || self.bitmaps.bit_left;
        let has_zstd = plan.geometry.compression == Compression::Zstd;
        let sum = |bits: &[(bool, u64)]| bits.iter().filter(|it| it.0).map(|it| it.1).sum();
        [
            sum(&[
                (plan.is_dirty(), INCOMPATIBLE_DIRTY),
                (plan.has(HeaderFlags::CORRUPT), INCOMPATIBLE_CORRUPT),
                (plan.data_file.is_some(), INCOMPATIBLE_DATA_FILE),
                (has_zstd, INCOMPATIBLE_COMPRESSION),
                (plan.geometry.extended_l2, INCOMPATIBLE_EXTENDED_L2),
            ]),
            sum(&[(plan.has_lazy_refcounts(), COMPATIBLE_LAZY_REFCOUNTS)]),
            sum(&[
                (has_bitmaps, AUTOCLEAR_BITMAPS),
                (plan.has_raw_data_file(), AUTOCLEAR_RAW_DATA_FILE),
            ]),
        ]
    }
}

/// An L1 table of more bytes has the feature [`Feature::LargeL1`].
const LARGE_L1_BYTES: u64 = 1 << 20;

impl Builder {
    /// Returns the features of the image.
    pub fn features(&self) -> FeatureSet {
        let (plan, geometry) = (&self.plan, &self.plan.geometry);
        let mut features = FeatureSet::of(&[
            Feature::clusters(geometry.cluster_size),
            Feature::refcounts(geometry.refcount_order),
            Feature::Qcow2,
        ]);
        let l1_entries = geometry.l1_entries_for(plan.size_bytes);
        let backing = |format| plan.backing.is_some_and(|backing| backing.format == format);
        let unknown = [HeaderFlags::COMPATIBLE_BITS, HeaderFlags::AUTOCLEAR_BITS];
        for (there, feature) in [
            (geometry.version == Version::V2, Feature::Version2),
            (geometry.version == Version::V3, Feature::Version3),
            (geometry.extended_l2, Feature::ExtendedL2),
            (self.has_compressed, Feature::Compressed),
            (geometry.compression == Compression::Zstd, Feature::Zstd),
            (backing(ImageFormat::Qcow2), Feature::Qcow2Backing),
            (backing(ImageFormat::Raw), Feature::RawBacking),
            (plan.backing.is_some() && !plan.names_backing_format(), Feature::UnnamedFormat),
            (
                plan.backing.is_none() && plan.has(HeaderFlags::EMPTY_NAME),
                Feature::EmptyBackingName,
            ),
            (geometry.data_file, Feature::DataFile),
            (plan.has_raw_data_file(), Feature::RawDataFile),
            (!self.snapshots.is_empty(), Feature::Snapshots),
            (self.has_bitmap_traces(), Feature::Bitmaps),
            (plan.is_dirty(), Feature::Dirty),
            (plan.has(HeaderFlags::OUT_OF_DATE), Feature::OutOfDateRefcounts),
            (plan.has(HeaderFlags::CORRUPT), Feature::Corrupt),
            (plan.has_lazy_refcounts(), Feature::LazyRefcounts),
            (self.has_short_header(), Feature::ShortHeader),
            (self.has_odd_header(), Feature::OddHeader),
            (unknown.into_iter().any(|bits| plan.has(bits)), Feature::UnknownBits),
            (self.bitmaps.bit_left, Feature::UnknownBits),
            (self.active.entries > l1_entries, Feature::SpareL1),
            (self.active.entries * 8 > LARGE_L1_BYTES, Feature::LargeL1),
        ] {
            features.add_if(there, feature);
        }
        features
    }

    fn has_bitmap_traces(&self) -> bool {
        let bitmaps = &self.bitmaps;
        bitmaps.live > 0 || bitmaps.bit_left || bitmaps.extension_left.is_some()
    }

    fn has_short_header(&self) -> bool {
        self.header_bytes() == Some(u64::from(V3_LENGTH_BYTES))
    }

    fn has_odd_header(&self) -> bool {
        let usual = [V3_LENGTH_BYTES, V3_COMPRESSION_LENGTH_BYTES].map(u64::from);
        self.header_bytes().is_some_and(|length| !usual.contains(&length))
    }

    /// Returns the length that the program requests for a version 3 header.
    fn header_bytes(&self) -> Option<u64> {
        let is_version_3 = self.plan.geometry.version == Version::V3;
        is_version_3.then(|| HeaderLengths::of(&self.plan).requested_bytes)
    }
}

const fn header_field(field: StructureField, transform: Transform, value: u16) -> FieldChange {
    FieldList::new(Part::Header, fields::FIELDS).change(field, transform, value)
}

/// Twice the index of a word: an odd number would name the entry behind the element.
const fn extension(word: u16, transform: Transform, value: u16) -> FieldChange {
    (Part::Extension, word * 2, transform, value)
}

const fn flip(word: u16, bit: u16) -> FieldChange {
    extension(word, Transform::Flip, bit)
}

/// The attacks on qcow2. An extension has a type, a length and words of content.
pub const ATTACKS: &[&[FieldChange]] = &[
    &[header_field(fields::VERSION, Transform::Set, 4)],
    &[header_field(fields::BACKING_FILE_OFFSET, Transform::Boundary, 10)],
    // The name of a backing file.
    &[
        header_field(fields::BACKING_FILE_OFFSET, Transform::Set, 400),
        header_field(fields::BACKING_FILE_SIZE, Transform::Set, 1024),
    ],
    &[header_field(fields::CLUSTER_BITS, Transform::Set, 8)],
    &[header_field(fields::CLUSTER_BITS, Transform::Set, 22)],
    &[header_field(fields::SIZE, Transform::Boundary, 1)],
    &[header_field(fields::SIZE, Transform::Boundary, 3)],
    &[header_field(fields::CRYPT_METHOD, Transform::Set, 1)],
    &[header_field(fields::CRYPT_METHOD, Transform::Set, 2)],
    &[header_field(fields::CRYPT_METHOD, Transform::Set, 3)],
    &[header_field(fields::L1_SIZE, Transform::Set, 0)],
    &[header_field(fields::L1_SIZE, Transform::Boundary, 12)],
    &[header_field(fields::L1_TABLE_OFFSET, Transform::Misalign, 0)],
    &[header_field(fields::REFCOUNT_TABLE_OFFSET, Transform::Misalign, 0)],
    &[header_field(fields::REFCOUNT_TABLE_CLUSTERS, Transform::Set, 0)],
    &[header_field(fields::REFCOUNT_TABLE_CLUSTERS, Transform::Boundary, 11)],
    // One snapshot too many.
    &[
        header_field(fields::NB_SNAPSHOTS, Transform::Boundary, 14),
        header_field(fields::NB_SNAPSHOTS, Transform::Add, 1),
    ],
    &[header_field(fields::SNAPSHOTS_OFFSET, Transform::Misalign, 0)],
    // Extended L2, which small clusters cannot have.
    &[header_field(fields::INCOMPATIBLE_FEATURES, Transform::Flip, 4)],
    &[header_field(fields::INCOMPATIBLE_FEATURES, Transform::Flip, 3)],
    &[header_field(fields::INCOMPATIBLE_FEATURES, Transform::Flip, 5)],
    &[header_field(fields::AUTOCLEAR_FEATURES, Transform::Flip, 1)],
    &[header_field(fields::REFCOUNT_ORDER, Transform::Set, 7)],
    &[header_field(fields::HEADER_LENGTH, Transform::Set, 103)],
    &[header_field(fields::HEADER_LENGTH, Transform::Boundary, 10)],
    &[header_field(fields::COMPRESSION_TYPE, Transform::Set, 2)],
    // The first extension.
    &[extension(1, Transform::Boundary, 1)],
    // It becomes the extension of a crypto header, 0537BE77.
    &[
        extension(0, Transform::Set, 0xBE77),
        flip(0, 16),
        flip(0, 17),
        flip(0, 18),
        flip(0, 20),
        flip(0, 21),
        flip(0, 24),
        flip(0, 26),
    ],
    // It becomes a backing format, E2792ACA, of 16 bytes.
    &[
        extension(0, Transform::Set, 0x2ACA),
        extension(1, Transform::Set, 16),
        flip(0, 16),
        flip(0, 19),
        flip(0, 20),
        flip(0, 21),
        flip(0, 22),
        flip(0, 25),
        flip(0, 29),
        flip(0, 30),
        flip(0, 31),
    ],
    // If it is the bitmaps extension: its length, its content.
    &[extension(1, Transform::Set, 16)],
    &[extension(2, Transform::Add, 1)],
    &[extension(2, Transform::Set, 0)],
    &[extension(3, Transform::Set, 0)],
    &[extension(3, Transform::Boundary, 15)],
    &[extension(4, Transform::Misalign, 0)],
    // The length of a snapshot's extra data.
    &[(Part::Snapshot, 16, Transform::Set, 1025)],
    &[(Part::L1, 0, Transform::Misalign, 0)],
    &[(Part::L2, 0, Transform::Misalign, 0)],
    // The number of bitmaps.
    &[extension(2, Transform::Flip, 48)],
];
