//! The attacks of known meaning on VDI images.

use crate::formats::anatomy::StructureField;
use crate::formats::vdi::constants::header;
use crate::images::damage::{FieldChange, Transform};
use crate::images::field_changes::declared;

const fn vdi_field(field: StructureField, transform: Transform, value: u16) -> FieldChange {
    declared(header::FIELDS, field, transform, value)
}

/// The attacks on VDI.
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
