//! The rules about images, in the order of QEMU's checks (`block/vdi.c`, `vdi_open`). QEMU accepts any entry of the
//! block map.

use crate::formats::anatomy::StructureField;
use crate::formats::vdi::constants::{
    MAX_VDI_BLOCKS, VDI_BLOCK_BYTES, VDI_SECTOR_BYTES, VDI_SIGNATURE, VDI_VERSION, header,
};
use crate::images::image::Image;
use crate::images::rule::BrokenRule;
use crate::images::rule_bytes::Bytes;

/// The value of a field in the image that is judged.
type FieldValue<'n> = &'n dyn Fn(StructureField) -> u64;

/// A rule, and the test of an image that breaks it.
type VdiRule = (BrokenRule, fn(FieldValue) -> bool);

const MAX_BYTES: u64 = MAX_VDI_BLOCKS as u64 * VDI_BLOCK_BYTES;

const RULES: &[VdiRule] = &[
    ("VDI size above 512 TiB", |number| number(header::DISK_SIZE) > MAX_BYTES),
    (SIGNATURE, |number| number(header::SIGNATURE) != u64::from(VDI_SIGNATURE)),
    ("VDI version", |number| number(header::VERSION) != u64::from(VDI_VERSION)),
    ("VDI offset of the block map", |number| {
        !number(header::OFFSET_BMAP).is_multiple_of(VDI_SECTOR_BYTES)
    }),
    ("VDI offset of the data", |number| {
        !number(header::OFFSET_DATA).is_multiple_of(VDI_SECTOR_BYTES)
    }),
    ("VDI sector size", |number| number(header::SECTOR_SIZE) != VDI_SECTOR_BYTES),
    ("VDI block size", |number| number(header::BLOCK_SIZE) != VDI_BLOCK_BYTES),
    ("VDI block map below the size", |number| {
        number(header::DISK_SIZE) > number(header::BLOCKS_IN_IMAGE) * VDI_BLOCK_BYTES
    }),
    ("VDI link", |number| number(header::UUID_LINK) != 0 || number(header::UUID_LINK_END) != 0),
    ("VDI parent", |number| {
        number(header::UUID_PARENT) != 0 || number(header::UUID_PARENT_END) != 0
    }),
    ("VDI number of blocks", |number| number(header::BLOCKS_IN_IMAGE) > u64::from(MAX_VDI_BLOCKS)),
];

const SIGNATURE: BrokenRule = "VDI signature";

/// Returns the names of the rules.
pub(super) fn open_rules() -> impl Iterator<Item = BrokenRule> {
    RULES.iter().map(|(name, _)| *name)
}

/// Returns the first rule that an image breaks.
pub(super) fn broken_at_open(image: &Image) -> Option<BrokenRule> {
    let bytes = Bytes::new(image);
    let number = |field: StructureField| number_of(bytes, field);
    RULES.iter().find(|(_, is_broken)| is_broken(&number)).map(|(name, _)| *name)
}

/// Reports whether a file has the signature.
pub(super) fn has_signature(image: &Image) -> bool {
    number_of(Bytes::new(image), header::SIGNATURE) == u64::from(VDI_SIGNATURE)
}

/// Returns the number in a field.
fn number_of(bytes: Bytes<'_>, field: StructureField) -> u64 {
    bytes.little(field.at as u64, field.width_bytes as u8)
}
