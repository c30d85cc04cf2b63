//! The interface between a format's drawer and the rest of the harness. A drawer implements [`ImageDrawer`]; the list
//! of formats makes it known ([`drawer`](crate::images::format::list::drawer)).

pub mod file_plan;
pub mod layer_anatomy;
pub mod list;
pub mod looks;

use std::ops::Range;

use crate::base::features::{Feature, FeatureSet};
use crate::base::reasons::FormatMessages;
use crate::disk::clusters::{ClusterSize, GuestCluster};
use crate::disk::observer::Observer;
use crate::disk::offsets::HostOffset;
use crate::formats::anatomy::{ByteOrder, SealKind, StructureField};

use super::content::unstamped::EntryForm;
use super::damage::FieldChange;
use super::damage::rules::{BrokenEntry, BrokenRule};
use super::files::LayerFiles;
use super::files::image::Image;
use super::qcow2::payload::PayloadKind;
use super::qcow2::{BuildScratch, Builder, ImagePlan, MappedCluster, Names, PayloadFrame};
use file_plan::{ExtentForm, ExtentPlan, FilePlan, TableReach};

/// A layer that is built.
#[derive(Clone, Copy, Debug)]
pub struct NewLayer<'b> {
    /// The builder, whose plan is one of [`ImageDrawer::plan`].
    pub builder: &'b Builder,
    /// The names by which the image refers to other files.
    pub names: Names<'b>,
    /// The builder of the layer below, if that has the same format.
    pub below: Option<&'b Builder>,
    /// The file stores only data. Only raw files have holes.
    pub has_holes: bool,
}

/// The buffers of a build, which can be reused from image to image.
#[derive(Debug, Default)]
pub struct BuildBuffers {
    /// The mapped clusters of an image whose format is not qcow2.
    pub mapped: Vec<MappedCluster>,
    /// The structures of a qcow2 image.
    pub qcow2: BuildScratch,
}

/// An option of `qemu-img create`, with values that a recipe may give it. Only the commands draw recipes.
#[derive(Clone, Copy, Debug)]
pub struct CreateOption {
    /// The name.
    pub name: &'static str,
    /// The values. A value that is drawn more often occurs several times.
    pub values: &'static [&'static str],
    /// The value for a large disk, if another value would make the file as large as the disk.
    pub of_large_disk: Option<&'static str>,
}

/// A disk for which a recipe creates an image.
#[derive(Clone, Copy, Debug)]
pub struct NewDisk {
    /// The image lies on another one.
    pub is_overlay: bool,
    /// The disk is so large that its tables are not preallocated.
    pub is_large: bool,
}

/// A function that draws a number below another one.
pub type DrawBelow<'a> = &'a mut dyn FnMut(u64) -> u64;

/// Options of `qemu-img create` that a drawer has drawn.
#[derive(Clone, Debug)]
pub struct DrawnOptions {
    /// The options, separated by commas.
    pub text: String,
    /// The image takes each cluster only once, and in order.
    pub is_stream: bool,
}

/// A plain image of the self-test in another format than qcow2. Its program writes two blocks.
#[derive(Clone, Copy, Debug)]
pub struct PlainForm {
    /// The name.
    pub name: &'static str,
    /// The operands of the prologue: cluster size and disk size.
    pub operands: &'static str,
    /// The variety.
    pub form: u16,
    /// The operations, a line each.
    pub operations: &'static str,
}

impl PlainForm {
    /// Creates an image whose program writes [`TWO_BLOCKS`].
    pub const fn of_two_blocks(name: &'static str, operands: &'static str, form: u16) -> Self {
        Self { name, operands, form, operations: TWO_BLOCKS }
    }

    /// Creates an image of a large disk whose program writes [`TWO_ENDS`].
    pub const fn of_two_ends(name: &'static str, operands: &'static str, form: u16) -> Self {
        Self { name, operands, form, operations: TWO_ENDS }
    }
}

/// Operations that write a block near the beginning and one near the end of a large disk.
const TWO_ENDS: &str = "write at=start+1 clusters=1\nwrite at=end-9 clusters=1";
/// Operations that write two blocks in reverse order, and leave holes.
const TWO_BLOCKS: &str = "write at=start+6 clusters=1\nwrite at=start+1 clusters=1";

/// The harness's knowledge of a format: the images that it builds, their damage, and the rules that readers enforce.
/// Each method of a format without the feature keeps its default.
pub trait ImageDrawer: Sync {
    /// Returns the size of a block, from the bits of a qcow2 cluster.
    fn block_size(&self, cluster_bits: u32) -> ClusterSize {
        ClusterSize::from_bits(cluster_bits).unwrap_or(ClusterSize::SMALLEST)
    }

    /// Returns the plan of the file of the variety that the bits of `form` select.
    fn plan(&self, form: u16, reach: TableReach, block: ClusterSize) -> FilePlan;

    /// Returns log2 of the smallest qcow2 cluster whose block suits a large disk: readers read some tables whole, and
    /// that of a disk of 20 GiB should have less than 1 MiB.
    fn large_disk_cluster_bits(&self) -> u8 {
        0
    }

    /// Returns the features of an image beside those of its format as a whole. Those of qcow2 images depend on more
    /// than the plan: [`Builder::features`].
    fn features(&self, plan: &ImagePlan) -> FeatureSet {
        let _ = plan;
        FeatureSet::EMPTY
    }

    /// Returns the variety nearest to `form` whose images with blocks of this size have none of the features `lacking`;
    /// `form` itself if there is none.
    fn fold_form(&self, form: u16, block: ClusterSize, lacking: FeatureSet) -> u16 {
        let _ = (block, lacking);
        form
    }

    /// Returns the kind nearest to `kind` of a file beside an image with blocks of this size that has none of the
    /// features `lacking`; `kind` itself if there is none.
    fn fold_extent(&self, kind: ExtentForm, block: ClusterSize, lacking: FeatureSet) -> ExtentForm {
        let _ = (block, lacking);
        kind
    }

    /// Returns log2 of the smallest and of the largest qcow2 cluster for whose block there is an image with none of the
    /// features `lacking`.
    fn fold_cluster_bits(&self, lacking: FeatureSet) -> (u8, u8) {
        let _ = lacking;
        (0, u8::MAX)
    }

    /// Writes the files of a layer.
    fn build(
        &self,
        layer: NewLayer<'_>,
        buffers: &mut BuildBuffers,
        files: &mut LayerFiles,
        observer: &dyn Observer,
    );

    /// Reports the vitals of the image that was built last with `buffers`.
    fn report_vitals(&self, builder: &Builder, buffers: &BuildBuffers, observer: &dyn Observer) {
        let _ = buffers;
        builder.report_file(observer);
    }

    /// Reports whether the image can state that a cluster consists of zeros.
    fn has_zeros(&self, file: &FilePlan) -> bool {
        let _ = file;
        true
    }

    /// Reports whether an entry of zeros has room for the host offset of its cluster.
    fn keeps_place_of_zeros(&self) -> bool {
        true
    }

    /// Reports whether data of `cluster` that look like a footer would pass for the footer of the image.
    fn misleads(&self, file: &FilePlan, cluster: GuestCluster) -> bool {
        let _ = (file, cluster);
        false
    }

    /// Returns the encoding of an entry of a data cluster in the tables of an image.
    fn entry_form(&self) -> EntryForm;

    /// Returns the number of bytes of the structures besides tables that a walk may read of an image with `files`
    /// beside it.
    fn structure_bytes(&self, files: usize) -> u64;

    /// Returns the names of the rules about whole images.
    fn open_rules(&self) -> Vec<BrokenRule>;

    /// Returns the names of those rules about whole images that are limits of QEMU. No specification states them.
    fn qemu_limits(&self) -> &'static [BrokenRule] {
        &[]
    }

    /// Returns the names of the rules about entries.
    fn entry_rules(&self) -> &'static [BrokenRule];

    /// Returns the first rule that an image breaks; `None` if it keeps all of them. Each file is a valid raw image.
    fn broken_at_open(&self, image: &Image) -> Option<BrokenRule>;

    /// Calls `take` with the entries of an image that break a rule. The image as a whole breaks no rule. For qcow2,
    /// another function judges the entries, and only those that an attack has changed.
    fn broken_entries(&self, image: &Image, take: &mut dyn FnMut(BrokenEntry));

    /// Returns the first rule that a file beside the image breaks; `None` if it keeps all of them, or if the rules do
    /// not judge it.
    fn broken_extent(&self, file: &Image) -> Option<BrokenRule> {
        let _ = file;
        None
    }

    /// Returns the first rule that only the specification demands and that a layer breaks, which lies on `below`. QEMU
    /// opens such an image all the same. The layer is as a program builds it, and breaks no rule of
    /// [`ImageDrawer::broken_at_open`]. Blocks that overlap or lie past the end of the file break no rule here: the
    /// anatomy shows them in every format.
    fn broken_by_specification(
        &self,
        files: &LayerFiles,
        below: Option<&LayerFiles>,
    ) -> Option<BrokenRule> {
        let _ = (files, below);
        None
    }

    /// Reports whether a file that breaks `rule` still begins like an image of the format. QEMU probes the format of a
    /// layer below, and takes a file without the signature for a raw one.
    fn has_signature(&self, image: &Image, rule: BrokenRule) -> bool;

    /// Corrects the checksums of all structures that lie where readers look for them. Leaves files of other formats as
    /// they are.
    fn correct_checksums(&self, file: &mut [u8]) {
        let _ = file;
    }

    /// Returns the options with which recipes let qemu-img create an image. The option `block_size` sets the length of
    /// a block in bytes. Options that depend on each other are those of [`Self::draw_create_options`]; recipes draw the
    /// options of qcow2 and raw images themselves.
    fn create_options(&self) -> &'static [CreateOption] {
        &[]
    }

    /// Returns the length in bytes of a block of an image that qemu-img creates without other options.
    fn created_block_bytes(&self) -> u64 {
        64 << 10
    }

    /// Returns the name of the qcow2 image of the self-test that lies on the first of [`Self::plain_forms`].
    fn name_below(&self) -> &'static str {
        ""
    }

    /// Returns the plain images of the self-test.
    fn plain_forms(&self) -> &'static [PlainForm] {
        &[]
    }

    /// Returns the attacks of known meaning on an image: damage for which QEMU refuses an image that is sound
    /// otherwise.
    fn attacks(&self) -> &'static [&'static [FieldChange]];

    /// Returns the attacks on an image with a file of this kind beside it; `None` if these are [`Self::attacks`].
    fn attacks_on_extent(&self, kind: ExtentForm) -> Option<&'static [&'static [FieldChange]]> {
        let _ = kind;
        None
    }

    /// Returns the messages of this program and of QEMU about images of the format.
    fn messages(&self) -> FormatMessages {
        FormatMessages::NONE
    }

    /// Returns the bytes around the payload of each block, if the image stores all blocks compressed; `None` otherwise.
    fn payload_frame(&self, file: &FilePlan) -> Option<PayloadFrame> {
        let _ = file;
        None
    }

    /// Returns the kind of payload that a compressed block gets for `wanted`.
    fn fitting_payload(&self, plan: &ImagePlan, wanted: PayloadKind) -> PayloadKind {
        let _ = plan;
        wanted
    }

    /// Returns the plan of the files of an image with one more file beside it; `None` if the image already has the
    /// largest number of files, or if the format has no such files.
    fn plan_with_extent(&self, plan: &ImagePlan, extent: ExtentPlan) -> Option<FilePlan> {
        let _ = (plan, extent);
        None
    }

    /// Reports whether an image that qemu-img creates with `option` has files beside it.
    fn creates_extents(&self, option: &str) -> bool {
        let _ = option;
        false
    }

    /// Reports whether a file ends like an image of the format, which need not begin like one.
    fn ends_like_image(&self, file: &[u8]) -> bool {
        let _ = file;
        false
    }

    /// Reports whether an image may begin with guest data, so that probing may find another format.
    fn begins_with_data(&self) -> bool {
        false
    }

    /// Returns the number of images in the format among 20 that recipes create.
    fn created_of_20(&self) -> u64 {
        1
    }

    /// Returns the size of the largest disk that recipes create, in bytes.
    fn max_created_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Draws the options with which a recipe lets qemu-img create an image, if they depend on each other. `below` draws
    /// a number below another one.
    fn draw_create_options(&self, disk: NewDisk, below: DrawBelow<'_>) -> Option<DrawnOptions> {
        let _ = (disk, below);
        None
    }

    /// Returns the place of blocks of which QEMU may read other bytes than the image states: the host offset of the
    /// first block that a writer may store, and the end of the largest block at host offset 0. Blocks before the first
    /// one lead QEMU astray.
    fn misread_blocks(&self) -> Option<Range<HostOffset>> {
        None
    }
}

/// Returns `form` with its bit number `bit` changed if the images that it selects have a feature of `lacking`, and
/// those of the other value have none. The features are those of 0 and of 1.
pub fn fold_bit(form: u16, bit: u32, [of_0, of_1]: [Feature; 2], lacking: FeatureSet) -> u16 {
    let lacks = |feature| lacking.has(feature);
    let (own, other) = if form >> bit & 1 == 0 { (of_0, of_1) } else { (of_1, of_0) };
    if lacks(own) && !lacks(other) { form ^ 1 << bit } else { form }
}

/// Writes numbers into fields of a structure, in the byte order of its format.
pub fn put_fields(structure: &mut [u8], order: ByteOrder, numbers: &[(StructureField, u64)]) {
    for (field, number) in numbers {
        let place = part(structure, field.at, field.width_bytes).unwrap_or_default();
        match order {
            ByteOrder::BigEndian => {
                let bytes = number.to_be_bytes();
                place.copy_from_slice(&bytes[bytes.len() - place.len()..]);
            }
            ByteOrder::LittleEndian => place.copy_from_slice(&number.to_le_bytes()[..place.len()]),
        }
    }
}

/// Returns the number in a field of a structure that is no longer than a file in memory; `None` if it is, or if the
/// structure ends before the field.
pub fn size_in(structure: &[u8], order: ByteOrder, field: StructureField) -> Option<usize> {
    let bytes = structure.get(field.at..)?.get(..field.width_bytes)?;
    let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    let number = match order {
        ByteOrder::BigEndian => bytes.iter().fold(0, add),
        ByteOrder::LittleEndian => bytes.iter().rev().fold(0, add),
    };
    usize::try_from(number).ok()
}

/// Writes the checksum of a structure.
pub fn seal(structure: &mut [u8], checksum_at: usize, kind: SealKind) {
    let checksum = kind.of(structure, checksum_at);
    put(structure, checksum_at, checksum);
}

/// Returns a part of a file, if the file has all of it.
pub fn part(file: &mut [u8], at: usize, length: usize) -> Option<&mut [u8]> {
    file.get_mut(at..at.checked_add(length)?)
}

/// Writes a checksum.
fn put(structure: &mut [u8], at: usize, checksum: [u8; 4]) {
    if let Some(place) = structure.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = checksum;
    }
}
