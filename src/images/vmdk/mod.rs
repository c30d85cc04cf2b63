//! VMDK images. The builder of qcow2 images places the clusters, and this module writes the bytes of the files. An
//! image is one file, or a descriptor and the files of its extents.

mod descriptor;
mod encoding;
pub(in crate::images) mod facts;
mod features;
mod form;
mod grain_tables;
mod grains;
mod rules;
mod sesparse;
mod sparse;
mod specification;

use form::VmdkForm;

use smallvec::SmallVec;

use crate::base::features::FeatureSet;
use crate::base::file_parts::MAX_EXTENT_FILES;
use crate::base::reasons::FormatMessages;
use crate::disk::clusters::ClusterSize;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::HostOffset;
use crate::formats::anatomy::{Part, StructureField};
use crate::formats::vmdk::constants::{
    SECTOR_BYTES, const_header, grain_marker, marker, sparse_header, stream, volatile_header,
};

use super::content::entropy::Entropy;
use super::content::unstamped::EntryForm;
use super::damage::attacks::{FieldList, item};
use super::damage::rules::{BrokenEntry, BrokenRule};
use super::damage::{FieldChange, Transform};
use super::files::LayerFiles;
use super::files::image::Image;
use super::format::file_plan::{ExtentForm, ExtentPlan, FilePlan, TableReach};
use super::format::{
    BuildBuffers, DrawBelow, DrawnOptions, ImageDrawer, NewDisk, NewLayer, PlainForm,
};
use super::qcow2::payload::PayloadKind;
use super::qcow2::tables::ClusterMapping;
use super::qcow2::{Builder, ImagePlan, MappedCluster, PayloadFrame, report_structures};
use descriptor::Parent;
use encoding::DiskPart;
use form::Kind;
use sparse::SparseExtent;

/// The drawer of the format.
pub struct Drawer;

impl ImageDrawer for Drawer {
    fn plan(&self, form: u16, reach: TableReach, block: ClusterSize) -> FilePlan {
        VmdkForm::new(form, reach).plan(block)
    }

    fn features(&self, plan: &ImagePlan) -> FeatureSet {
        features::of(plan)
    }

    fn fold_form(&self, form: u16, block: ClusterSize, lacking: FeatureSet) -> u16 {
        features::fold_form(form, block, lacking)
    }

    fn fold_extent(&self, kind: ExtentForm, block: ClusterSize, lacking: FeatureSet) -> ExtentForm {
        features::fold_extent(kind, block, lacking)
    }

    fn fold_cluster_bits(&self, lacking: FeatureSet) -> (u8, u8) {
        features::fold_cluster_bits(lacking)
    }

    fn build(
        &self,
        layer: NewLayer<'_>,
        buffers: &mut BuildBuffers,
        files: &mut LayerFiles,
        observer: &dyn Observer,
    ) {
        let parent = layer.below.map(|below| parent(layer.names.backing, below));
        build(layer.builder, parent, &mut buffers.mapped, files, observer);
    }

    fn has_zeros(&self, file: &FilePlan) -> bool {
        features::has_zero_grains(file)
    }

    fn keeps_place_of_zeros(&self) -> bool {
        false
    }

    fn entry_form(&self) -> EntryForm {
        EntryForm { width_bytes: 4, is_big_endian: false, unit_bits: 9, flags: 0 }
    }

    /// Header, footer and descriptor of each file.
    fn structure_bytes(&self, files: usize) -> u64 {
        (16 << 10) * (files as u64).max(1)
    }

    fn open_rules(&self) -> Vec<BrokenRule> {
        [rules::VMDK_OPEN_RULES, rules::SE_SPARSE_OPEN_RULES].concat()
    }

    fn entry_rules(&self) -> &'static [BrokenRule] {
        rules::VMDK_ENTRY_RULES
    }

    fn qemu_limits(&self) -> &'static [BrokenRule] {
        rules::VMDK_LIMITS
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
        below: Option<&LayerFiles>,
    ) -> Option<BrokenRule> {
        specification::broken_by_specification(files, below)
    }

    fn broken_extent(&self, file: &Image) -> Option<BrokenRule> {
        rules::broken_extent(file)
    }

    fn has_signature(&self, _image: &Image, rule: BrokenRule) -> bool {
        rule != rules::VMDK_MAGIC
    }

    fn name_below(&self) -> &'static str {
        "qcow2 on a VMDK disk"
    }

    fn plain_forms(&self) -> &'static [PlainForm] {
        const OPERANDS: &str = "size=8<<16+0";
        const COMPRESSED: &str =
            "compress at=start+6 clusters=1 shape=half skew=packed\nwrite at=start+1 clusters=1";
        const ZEROS: &str = "write at=start+1 clusters=3\nzero at=start+2 clusters=1 keep=no";
        const CHILD: &str = "write at=start+1 clusters=2\n\
             overlay_vmdk cluster_bits=16 form=0 size=same\nwrite at=start+2 clusters=1";
        /// Two extents of this kind.
        macro_rules! extents {
            ($kind:literal) => {
                concat!(
                    "extent kind=",
                    $kind,
                    " length=2<<0 lead=0\n",
                    "extent kind=",
                    $kind,
                    " length=6<<0 lead=0\n",
                    "write at=start+6 clusters=1\nwrite at=start+1 clusters=1"
                )
            };
        }
        const fn plain(name: &'static str, form: u16, operations: &'static str) -> PlainForm {
            PlainForm { name, operands: OPERANDS, form, operations }
        }
        const FORMS: &[PlainForm] = &[
            PlainForm::of_two_blocks("VMDK disk", OPERANDS, 0),
            plain("compressed VMDK disk", 544, COMPRESSED),
            plain("VMDK disk with zeros", 1 << 10, ZEROS),
            PlainForm::of_two_blocks("VMDK disk of ESX", OPERANDS, 3 << 3),
            plain("sparse VMDK extents", 0, extents!("sparse")),
            plain("flat VMDK extents", 0, extents!("flat")),
            plain("VMDK extents of ESX", 0, extents!("vmfs_sparse")),
            plain("seSparse VMDK extents", 0, extents!("se_sparse")),
            plain("VMDK disk with a parent", 0, CHILD),
            PlainForm::of_two_ends("VMDK disk of 5 GiB", "cluster_bits=19 size=5<<30+0", 0),
        ];
        FORMS
    }

    fn attacks(&self) -> &'static [&'static [FieldChange]] {
        ATTACKS
    }

    fn attacks_on_extent(&self, kind: ExtentForm) -> Option<&'static [&'static [FieldChange]]> {
        (kind == ExtentForm::SeSparse).then_some(SE_SPARSE)
    }

    fn created_of_20(&self) -> u64 {
        4
    }

    /// More than two files of 2 GiB. `qemu-img map` asks for the grains of 64 KiB one by one.
    fn max_created_bytes(&self) -> u64 {
        5 << 30
    }

    fn draw_create_options(&self, disk: NewDisk, below: DrawBelow<'_>) -> Option<DrawnOptions> {
        Some(draw_create_options(disk, below))
    }

    fn payload_frame(&self, file: &FilePlan) -> Option<PayloadFrame> {
        let form = VmdkForm::of(file);
        form.is_compressed().then(|| grains::frame(form.storage()))
    }

    fn fitting_payload(&self, plan: &ImagePlan, wanted: PayloadKind) -> PayloadKind {
        grains::fitting(VmdkForm::of(&plan.file).storage(), plan, wanted)
    }

    fn plan_with_extent(&self, plan: &ImagePlan, extent: ExtentPlan) -> Option<FilePlan> {
        plan_with_extent(plan, extent)
    }

    fn creates_extents(&self, option: &str) -> bool {
        ["subformat=monolithicFlat", "subformat=twoGb"].iter().any(|kind| option.starts_with(kind))
    }

    fn messages(&self) -> FormatMessages {
        facts::FORMAT_MESSAGES
    }
}

/// Draws options of `qemu-img create`. Few of them go together.
fn draw_create_options(disk: NewDisk, below: DrawBelow<'_>) -> DrawnOptions {
    const OVERLAYS: &[&str] = &["monolithicSparse", "twoGbMaxExtentSparse"];
    const LARGE: &[&str] = &["monolithicSparse", "monolithicSparse", "twoGbMaxExtentSparse"];
    const SMALL: &[&str] = &[
        "monolithicSparse",
        "monolithicSparse",
        "monolithicFlat",
        "twoGbMaxExtentSparse",
        "twoGbMaxExtentFlat",
        "streamOptimized",
    ];
    const ADAPTERS: &[&str] = &["ide", "buslogic", "lsilogic", "legacyESX"];
    const OTHERS: &[&str] = &[",compat6=on", ",hwversion=13", ",toolsversion=1234", ""];
    let word = |words: &[&'static str], below: DrawBelow<'_>| {
        words.get(below(words.len() as u64) as usize).copied().unwrap_or_default()
    };
    let kinds = match disk {
        NewDisk { is_overlay: true, .. } => OVERLAYS,
        NewDisk { is_large: true, .. } => LARGE,
        _ => SMALL,
    };
    let kind = word(kinds, below);
    let mut text = format!("subformat={kind},adapter_type={}", word(ADAPTERS, below));
    if kind.ends_with("Sparse") && below(100) < 40 {
        text += ",zeroed_grain=on";
    }
    text += word(OTHERS, below);
    DrawnOptions { text, is_stream: kind == "streamOptimized" }
}

/// Returns the plan of the files of an image with one more file beside it; `None` if the image already has the largest
/// number of files.
fn plan_with_extent(plan: &ImagePlan, wanted: ExtentPlan) -> Option<FilePlan> {
    let grain = plan.geometry.cluster_size;
    let form = sesparse::kind_with_grains_of(wanted.form, grain);
    let extents = plan.file.extents.with(ExtentPlan { form, ..wanted })?;
    Some(VmdkForm::of(&plan.file).plan_of_extents(grain, extents))
}

/// Returns the VMDK image of `builder` as a parent with the file name `name`.
fn parent<'n>(name: &'n [u8], builder: &Builder) -> Parent<'n> {
    Parent { name, identity: identity(builder, VmdkForm::of(&builder.plan().file)) }
}

/// Writes the image of `builder`, whose plan is that of a [`VmdkForm`]. `mapped` is a buffer.
fn build(
    builder: &Builder,
    parent: Option<Parent>,
    mapped: &mut Vec<MappedCluster>,
    files: &mut LayerFiles,
    observer: &dyn Observer,
) {
    let plan = builder.plan();
    files.begin(plan.file.format);
    let name = parent.iter().flat_map(|parent| parent.name);
    files.declarations.backing_name.extend(name);
    builder.mapped_clusters(mapped);
    let form = VmdkForm::of(&plan.file);
    mapped.retain(|grain| is_stored(form, grain.mapping));
    let identities = (identity(builder, form), parent);
    if !plan.file.extents.all().is_empty() {
        write(builder, form, identities, mapped, files);
        let beside = files.extents.all().iter();
        observer.begin(State::Serialise);
        return beside.for_each(|_| observer.event(State::Serialise, Event::Extent));
    }
    let part = DiskPart::whole(builder);
    let extent = SparseExtent { builder, form, part, has_descriptor: true };
    let placed = extent.write(mapped, &mut files.image);
    let name = files.name.as_str();
    descriptor::write_embedded(&mut files.image, form, (name, part.sectors), identities);
    files.image.seal(placed.end);
    if observer.observes() {
        let has_footer = matches!(form.kind(), Kind::Sparse { has_footer: true, .. });
        let blocks = plan.file.places.filter(|_| !mapped.is_empty()).map(|it| it.start(0));
        let structures = [
            (Some(0), Event::Header),
            (placed.redundant_directory, Event::Directory),
            (Some(placed.directory), Event::Directory),
            (blocks, Event::Block),
            (has_footer.then_some(placed.end), Event::Footer),
        ];
        report_structures(structures, observer);
    }
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

/// Reports whether the form has an entry for a grain. It has none for some grains past the end of the disk.
fn is_stored(form: VmdkForm, mapping: ClusterMapping) -> bool {
    match mapping {
        ClusterMapping::Zero(_) => form.has_zero_grains(),
        ClusterMapping::Normal(..) => !form.is_compressed(),
        ClusterMapping::Compressed(_) => form.is_compressed(),
        ClusterMapping::Unallocated | ClusterMapping::Extended(_) => false,
    }
}

/// Writes the descriptor and the files of all extents that have sectors. `mapped` are all clusters, in the order of the
/// disk.
fn write(
    builder: &Builder,
    form: VmdkForm,
    identities: (u32, Option<Parent>),
    mapped: &[MappedCluster],
    files: &mut LayerFiles,
) {
    let plans = builder.plan().file.extents;
    let mut written: SmallVec<[(ExtentPlan, u64); MAX_EXTENT_FILES]> = SmallVec::new();
    let (mut first, mut rest) = (0, mapped);
    for (index, plan) in plans.all().iter().enumerate() {
        let is_last = index + 1 == plans.all().len();
        let part = DiskPart::of(builder, first, (!is_last).then_some(plan.clusters));
        if part.sectors == 0 {
            break;
        }
        // The last part of the disk also holds the clusters past its end. A last cluster of less than a sector belongs
        // to no part, and no guest sees it.
        first = part.first + part.clusters;
        let has_rest = first < builder.guest_clusters();
        let own = match has_rest {
            true => rest.partition_point(|grain| grain.cluster.get() < first),
            false => rest.len(),
        };
        let (own, behind) = rest.split_at(own);
        rest = behind;
        write_extent(builder, form.of_extent(plan.form), (plan, part), own, files.extents.add());
        written.push((*plan, part.sectors));
    }
    descriptor::write_file(files, form, &written, identities);
}

/// Writes the file of an extent with the clusters `mapped`.
fn write_extent(
    builder: &Builder,
    form: VmdkForm,
    (plan, part): (&ExtentPlan, DiskPart),
    mapped: &[MappedCluster],
    image: &mut Image,
) {
    let end = match plan.form {
        ExtentForm::Flat | ExtentForm::Vmfs => {
            return write_flat(builder, plan, part, mapped, image);
        }
        ExtentForm::Sparse | ExtentForm::Cowd => {
            SparseExtent { builder, form, part, has_descriptor: false }.write(mapped, image).end
        }
        ExtentForm::SeSparse => {
            let places = builder.plan().file.places;
            let grains = places.map_or(0, |places| places.first_bytes);
            sesparse::write(builder, part, mapped, grains, image);
            places.map_or(0, |places| places.start(builder.file_clusters()))
        }
    };
    image.seal(end);
}

/// Writes guest data, each byte at its place.
fn write_flat(
    builder: &Builder,
    plan: &ExtentPlan,
    part: DiskPart,
    mapped: &[MappedCluster],
    image: &mut Image,
) {
    let cluster_bytes = builder.plan().geometry.cluster_size.bytes();
    for grain in mapped {
        let inside = grain.cluster.get() - part.first;
        // Clusters past the end of the disk have no place.
        let Some((_, write)) = grain.data().filter(|_| inside < part.clusters) else { continue };
        let at = HostOffset::new(plan.lead_bytes + inside * cluster_bytes);
        builder.write_cluster(image, grain.cluster, at, write);
    }
    let end = plan.lead_bytes + part.sectors * SECTOR_BYTES;
    image.truncate(end);
    image.seal(end);
}

/// The fields of the header, and those of the footer if there is one: of its marker, and of the header in it.
const SPARSE_FIELDS: FieldList = FieldList::new(Part::Header, sparse_header::FIELDS);
const STREAM_FOOTER_FIELDS: FieldList =
    SPARSE_FIELDS.behind(marker::FIELDS).behind(sparse_header::FIELDS);
/// The fields at the beginning of a grain: of the marker, and of the stream.
const GRAIN: FieldList = FieldList::new(Part::BlockFront, grain_marker::FIELDS);

/// Returns the change of a field in the header and in the footer.
const fn both(field: StructureField, transform: Transform, value: u16) -> [FieldChange; 2] {
    [
        SPARSE_FIELDS.change(field, transform, value),
        STREAM_FOOTER_FIELDS.change(field, transform, value),
    ]
}

/// The attacks on VMDK.
pub const ATTACKS: &[&[FieldChange]] = {
    use Transform::{Boundary, Flip, Set};
    use sparse_header as field;
    &[
        &[SPARSE_FIELDS.change(field::CAPACITY, Set, 0)],
        &[STREAM_FOOTER_FIELDS.change(field::MAGIC, Set, 0)],
        &both(field::VERSION, Set, 4),
        &both(field::GTES_PER_GT, Set, 513),
        &both(field::GRAIN_SIZE, Set, 0),
        &both(field::OVERHEAD, Boundary, 14),
        &both(field::GRAIN_SIZE, Boundary, 12),
        &both(field::CAPACITY, Boundary, 16),
        &[
            SPARSE_FIELDS.change(field::GD_OFFSET, Flip, 54),
            SPARSE_FIELDS.change(field::RGD_OFFSET, Flip, 54),
        ],
        // The values of the first two lines of the descriptor that have a number: the letters `zz`.
        &[item(8, Set, 0x7a7a), item(12, Set, 0x7a7a)],
        &[item(10, Set, 0x7a)],
        &[GRAIN.change(grain_marker::SIZE, Set, 0)],
        &[GRAIN.behind(stream::FIELDS).change(stream::ZLIB_HEADER, Set, 0)],
        // A grain without a marker.
        &[FieldList::new(Part::BlockFront, stream::FIELDS).change(stream::ZLIB_HEADER, Set, 0)],
    ]
};

/// The attacks on an seSparse extent, the first file beside a descriptor.
const SE_SPARSE: &[&[FieldChange]] = {
    use Transform::{Add, Flip, Set};
    use const_header as field;
    const CONST_FIELDS: FieldList = FieldList::new(Part::Header, const_header::FIELDS);
    const VOLATILE_FIELDS: FieldList = CONST_FIELDS.behind(volatile_header::FIELDS);
    &[
        &[CONST_FIELDS.change(field::VERSION, Add, 1)],
        &[CONST_FIELDS.change(field::GRAIN_SIZE, Set, 16)],
        &[CONST_FIELDS.change(field::GRAIN_TABLE_SIZE, Set, 128)],
        &[CONST_FIELDS.change(field::FLAGS, Set, 1)],
        &[CONST_FIELDS.change(field::RESERVED1, Set, 1)],
        &[CONST_FIELDS.change(field::RESERVED4, Set, 1)],
        &[CONST_FIELDS.change(field::VOLATILE_HEADER_OFFSET, Add, 1)],
        &[CONST_FIELDS.change(field::GRAIN_DIR_OFFSET, Flip, 54)],
        &[CONST_FIELDS.change(field::GRAIN_DIR_SIZE, Flip, 20)],
        &[CONST_FIELDS.change(field::PAD, Set, 1)],
        &[VOLATILE_FIELDS.change(volatile_header::MAGIC, Add, 1)],
        &[VOLATILE_FIELDS.change(volatile_header::REPLAY_JOURNAL, Set, 1)],
        &[VOLATILE_FIELDS.change(volatile_header::PAD, Set, 1)],
    ]
};
