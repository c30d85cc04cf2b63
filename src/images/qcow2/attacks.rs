//! The attacks of known meaning on qcow2 images.

use crate::formats::anatomy::Part;
use crate::formats::anatomy::StructureField;
use crate::formats::qcow2::constants::header;
use crate::images::damage::{FieldChange, Transform};
use crate::images::field_changes::declared;

const fn header_field(field: StructureField, transform: Transform, value: u16) -> FieldChange {
    declared(header::FIELDS, field, transform, value)
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
    &[header_field(header::VERSION, Transform::Set, 4)],
    &[header_field(header::BACKING_FILE_OFFSET, Transform::Boundary, 10)],
    // The name of a backing file.
    &[
        header_field(header::BACKING_FILE_OFFSET, Transform::Set, 400),
        header_field(header::BACKING_FILE_SIZE, Transform::Set, 1024),
    ],
    &[header_field(header::CLUSTER_BITS, Transform::Set, 8)],
    &[header_field(header::CLUSTER_BITS, Transform::Set, 22)],
    &[header_field(header::SIZE, Transform::Boundary, 1)],
    &[header_field(header::SIZE, Transform::Boundary, 3)],
    &[header_field(header::CRYPT_METHOD, Transform::Set, 1)],
    &[header_field(header::CRYPT_METHOD, Transform::Set, 2)],
    &[header_field(header::CRYPT_METHOD, Transform::Set, 3)],
    &[header_field(header::L1_SIZE, Transform::Set, 0)],
    &[header_field(header::L1_SIZE, Transform::Boundary, 12)],
    &[header_field(header::L1_TABLE_OFFSET, Transform::Misalign, 0)],
    &[header_field(header::REFCOUNT_TABLE_OFFSET, Transform::Misalign, 0)],
    &[header_field(header::REFCOUNT_TABLE_CLUSTERS, Transform::Set, 0)],
    &[header_field(header::REFCOUNT_TABLE_CLUSTERS, Transform::Boundary, 11)],
    // One snapshot too many.
    &[
        header_field(header::NB_SNAPSHOTS, Transform::Boundary, 14),
        header_field(header::NB_SNAPSHOTS, Transform::Add, 1),
    ],
    &[header_field(header::SNAPSHOTS_OFFSET, Transform::Misalign, 0)],
    // Extended L2, which small clusters cannot have.
    &[header_field(header::INCOMPATIBLE_FEATURES, Transform::Flip, 4)],
    &[header_field(header::INCOMPATIBLE_FEATURES, Transform::Flip, 3)],
    &[header_field(header::INCOMPATIBLE_FEATURES, Transform::Flip, 5)],
    &[header_field(header::AUTOCLEAR_FEATURES, Transform::Flip, 1)],
    &[header_field(header::REFCOUNT_ORDER, Transform::Set, 7)],
    &[header_field(header::HEADER_LENGTH, Transform::Set, 103)],
    &[header_field(header::HEADER_LENGTH, Transform::Boundary, 10)],
    &[header_field(header::COMPRESSION_TYPE, Transform::Set, 2)],
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
];
