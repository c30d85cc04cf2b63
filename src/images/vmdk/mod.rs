//! VMDK images: the bytes of files that follow the decisions of the builder of qcow2 images.

mod attacks;
mod descriptor;
mod encoding;
mod extents;
mod form;
mod grains;
mod part;
mod rules;
mod rules_of_grains;
mod rules_of_sesparse;
mod sesparse;
mod sparse;
mod tables;

pub use attacks::SE_SPARSE;
use descriptor::Parent;
pub use form::VmdkForm;

use crate::disk::clusters::ClusterSize;
use crate::disk::observer::{Event, Observer, State};
use crate::images::damage::FieldChange;
use crate::images::entropy::Entropy;
use crate::images::file_plan::{ExtentForm, ExtentPlan, FilePlan, TableReach};
use crate::images::files::LayerFiles;
use crate::images::format::{BuildBuffers, ImageDrawer, NewLayer, PlainForm, TWO_BLOCKS};
use crate::images::image::Image;
use crate::images::qcow2::payload::PayloadKind;
use crate::images::qcow2::tables::ClusterMapping;
use crate::images::qcow2::{Builder, ImagePlan, MappedCluster, PayloadFrame};
use crate::images::rule::{BrokenEntry, BrokenRule};
use crate::images::structures::report_structures;
use crate::images::unstamped::EntryForm;

use form::Kind;
use part::DiskPart;
use sparse::SparseExtent;

/// The drawer of the format.
pub struct Drawer;

impl ImageDrawer for Drawer {
    fn plan(&self, form: u16, reach: TableReach, block: ClusterSize) -> FilePlan {
        VmdkForm::new(form, reach).plan(block)
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
        let is_cowd = |extent: &ExtentPlan| extent.form == ExtentForm::Cowd;
        let has_cowd = file.extents.all().iter().any(is_cowd);
        VmdkForm::of(file).has_zero_grains() && !has_cowd
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
        [rules::VMDK_OPEN_RULES, rules_of_sesparse::SE_SPARSE_OPEN_RULES].concat()
    }

    fn entry_rules(&self) -> &'static [BrokenRule] {
        rules_of_grains::VMDK_ENTRY_RULES
    }

    fn broken_at_open(&self, image: &Image) -> Option<BrokenRule> {
        rules::broken_at_open(image)
    }

    fn broken_entries(&self, image: &Image, take: &mut dyn FnMut(BrokenEntry)) {
        rules_of_grains::broken_entries(image, take);
    }

    fn broken_extent(&self, file: &Image) -> Option<BrokenRule> {
        rules::broken_extent(file)
    }

    fn has_signature(&self, _image: &Image, rule: BrokenRule) -> bool {
        rule != rules::VMDK_MAGIC
    }

    fn plain_forms(&self) -> &'static [PlainForm] {
        const OPERANDS: &str = "size=8<<16+0";
        const COMPRESSED: &str =
            "compress at=start+6 clusters=1 shape=half skew=packed\nwrite at=start+1 clusters=1";
        &[
            PlainForm { name: "VMDK disk", operands: OPERANDS, form: 0, operations: TWO_BLOCKS },
            PlainForm {
                name: "compressed VMDK disk",
                operands: OPERANDS,
                form: 544,
                operations: COMPRESSED,
            },
        ]
    }

    fn attacks(&self) -> &'static [&'static [FieldChange]] {
        attacks::ATTACKS
    }
}

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

/// Returns the plan of the files of an image that has one more file beside it; `None` if it has the largest number.
pub fn plan_with_extent(plan: &ImagePlan, wanted: ExtentPlan) -> Option<FilePlan> {
    let grain = plan.geometry.cluster_size;
    let form = match wanted.form {
        ExtentForm::SeSparse if !sesparse::has_grains_for(grain) => ExtentForm::Sparse,
        form => form,
    };
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
        extents::write(builder, form, identities, mapped, files);
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
