//! The attacks of known meaning on qcow2 images.

use crate::formats::anatomy::Part;
use crate::images::damage::{FieldChange, Transform};

const fn field(field: u16, transform: Transform, value: u16) -> FieldChange {
    // Twice the index: an odd number would name the entry behind the element.
    (Part::Header, field * 2, transform, value)
}

const fn extension(word: u16, transform: Transform, value: u16) -> FieldChange {
    (Part::Extension, word * 2, transform, value)
}

const fn flip(word: u16, bit: u16) -> FieldChange {
    extension(word, Transform::Flip, bit)
}

/// The attacks on qcow2. The fields of the header have the order of the specification; an extension has a type, a
/// length and words of content.
pub const ATTACKS: &[&[FieldChange]] = &[
    &[field(1, Transform::Set, 4)],
    &[field(2, Transform::Boundary, 10)],
    // The name of a backing file.
    &[field(2, Transform::Set, 400), field(3, Transform::Set, 1024)],
    &[field(4, Transform::Set, 8)],
    &[field(4, Transform::Set, 22)],
    &[field(5, Transform::Boundary, 1)],
    &[field(5, Transform::Boundary, 3)],
    &[field(6, Transform::Set, 1)],
    &[field(6, Transform::Set, 2)],
    &[field(6, Transform::Set, 3)],
    &[field(7, Transform::Set, 0)],
    &[field(7, Transform::Boundary, 12)],
    &[field(8, Transform::Misalign, 0)],
    &[field(9, Transform::Misalign, 0)],
    &[field(10, Transform::Set, 0)],
    &[field(10, Transform::Boundary, 11)],
    // One snapshot too many.
    &[field(11, Transform::Boundary, 14), field(11, Transform::Add, 1)],
    &[field(12, Transform::Misalign, 0)],
    // Extended L2, which small clusters cannot have.
    &[field(13, Transform::Flip, 4)],
    &[field(13, Transform::Flip, 3)],
    &[field(13, Transform::Flip, 5)],
    &[field(15, Transform::Flip, 1)],
    &[field(16, Transform::Set, 7)],
    &[field(17, Transform::Set, 103)],
    &[field(17, Transform::Boundary, 10)],
    &[field(18, Transform::Set, 2)],
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
