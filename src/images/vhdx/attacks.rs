//! The attacks of known meaning on VHDX images. The fields have the order of `docs/bytecode.md`: `nth` is twice the
//! number of a field, or one more if the attack corrects the checksum. If a structure has a copy, the attack changes
//! both. If the image has no copy, `nth` names the structure itself once more, so that these attacks set values and do
//! not flip bits.

use crate::formats::anatomy::Part;
use crate::images::damage::{FieldChange, Transform};
use crate::images::field_changes::{entry, header, item, set};

/// The attacks on VHDX: 2 fields of the file's identifier, and 11 of each header; region tables of 2 entries; items in
/// the usual order.
pub const ATTACKS: &[&[FieldChange]] = &[
    &[header(5, Transform::Set, 0), header(27, Transform::Set, 0)],
    &[header(6, Transform::Add, 1), header(28, Transform::Add, 1)],
    &[header(21, Transform::Set, 2), header(43, Transform::Set, 2)],
    &[
        header(9, Transform::Set, 7),
        header(31, Transform::Set, 7),
        header(11, Transform::Set, 3),
        header(33, Transform::Set, 4),
    ],
    &[header(25, Transform::Misalign, 0), header(47, Transform::Misalign, 0)],
    &[
        header(15, Transform::Set, 1),
        header(37, Transform::Set, 1),
        header(19, Transform::Set, 1),
        header(41, Transform::Set, 1),
    ],
    &[
        header(15, Transform::Set, 1),
        header(37, Transform::Set, 1),
        header(23, Transform::Add, 1),
        header(45, Transform::Add, 1),
    ],
    &[set(Part::Directory, 1, 0), set(Part::Directory, 27, 0)],
    &[set(Part::Directory, 2, 0), set(Part::Directory, 28, 0)],
    &[set(Part::Directory, 5, 2048), set(Part::Directory, 31, 2048)],
    // Both regions become long.
    &[
        (Part::Directory, 13, Transform::Boundary, 15),
        (Part::Directory, 39, Transform::Boundary, 15),
        (Part::Directory, 23, Transform::Boundary, 15),
        (Part::Directory, 49, Transform::Boundary, 15),
    ],
    &[set(Part::Directory, 7, 0), set(Part::Directory, 33, 0)],
    &[
        set(Part::Directory, 7, 0),
        set(Part::Directory, 33, 0),
        set(Part::Directory, 15, 0),
        set(Part::Directory, 41, 0),
    ],
    &[item(0, Transform::Set, 0)],
    &[item(2, Transform::Set, 2048)],
    &[item(4, Transform::Set, 0)],
    &[item(4, Transform::Set, 0), item(12, Transform::Set, 0)],
    &[item(16, Transform::Flip, 1)],
    &[item(14, Transform::Add, 1)],
    &[item(54, Transform::Set, 1024)],
    &[item(28, Transform::Boundary, 16)],
    &[item(28, Transform::Boundary, 3), item(28, Transform::AddClusters, 1)],
    &[entry(Transform::PastEnd, 100)],
    &[entry(Transform::Structure, 70)],
    // States 4 and 7.
    &[entry(Transform::Flip, 1)],
    &[entry(Transform::Flip, 0)],
];
