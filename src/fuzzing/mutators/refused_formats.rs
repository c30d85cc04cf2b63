//! The attacks of known meaning on VHD, VHDX and VMDK images. The fields have the order of `docs/bytecode.md`: `nth` is
//! twice the number of a field, or one more if the attack corrects the checksum. If a structure has a copy, the attack
//! changes both. If the image has no copy, `nth` names the structure itself once more, so that these attacks set values
//! and do not flip bits.

use crate::formats::anatomy::Part;
use crate::images::damage::Transform;

/// The change of an element: its part, the number that names it (`nth`), the transform and its operand.
pub(super) type FieldChange = (Part, u16, Transform, u16);

const fn set(part: Part, nth: u16, value: u16) -> FieldChange {
    (part, nth, Transform::Set, value)
}

const fn header(nth: u16, transform: Transform, value: u16) -> FieldChange {
    (Part::Header, nth, transform, value)
}

const fn item(nth: u16, transform: Transform, value: u16) -> FieldChange {
    (Part::Metadata, nth, transform, value)
}

const fn entry(transform: Transform, value: u16) -> FieldChange {
    (Part::Table, 0, transform, value)
}

/// The attacks on VHD. A dynamic disk has 13 fields of the footer, 7 of the dynamic header, and 13 of the other footer.
pub(super) const VPC: &[&[FieldChange]] = &[
    &[set(Part::Header, 0, 0), set(Part::Header, 40, 0)],
    &[set(Part::Header, 0, 0), set(Part::Header, 42, 7)],
    &[set(Part::Header, 22, 1), set(Part::Header, 62, 1)],
    // The creator whose disk has the size in bytes, and the largest size.
    &[header(9, Transform::Set, 7), header(13, Transform::Boundary, 17), set(Part::Header, 42, 7)],
    &[set(Part::Header, 26, 0)],
    &[header(7, Transform::PastEnd, 9), set(Part::Header, 42, 7)],
    &[header(37, Transform::Set, 256)],
    &[header(37, Transform::Add, 1)],
    &[header(35, Transform::Set, 0)],
    &[header(35, Transform::Boundary, 15)],
    &[header(31, Transform::PastEnd, 0)],
    &[entry(Transform::PastEnd, 100)],
];

/// The attacks on VHDX: 2 fields of the file's identifier, and 11 of each header; region tables of 2 entries; items in
/// the usual order.
pub(super) const VHDX: &[&[FieldChange]] = &[
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

/// The attacks on VMDK. If there is a footer, its header begins with the 17th field behind that of the header.
pub(super) const VMDK: &[&[FieldChange]] = &[
    &[header(6, Transform::Set, 0)],
    &[header(34, Transform::Set, 0)],
    &[header(2, Transform::Set, 4), header(36, Transform::Set, 4)],
    &[header(14, Transform::Set, 513), header(48, Transform::Set, 513)],
    &[header(8, Transform::Set, 0), header(42, Transform::Set, 0)],
    &[header(20, Transform::Boundary, 14), header(54, Transform::Boundary, 14)],
    &[header(8, Transform::Boundary, 12), header(42, Transform::Boundary, 12)],
    &[header(6, Transform::Boundary, 16), header(40, Transform::Boundary, 16)],
    &[header(18, Transform::Flip, 54), header(16, Transform::Flip, 54)],
    // The values of the first two lines of the descriptor that have a number: the letters `zz`.
    &[item(8, Transform::Set, 0x7a7a), item(12, Transform::Set, 0x7a7a)],
    &[item(10, Transform::Set, 0x7a)],
    // The marker of a grain, and the front of a stream.
    &[(Part::BlockFront, 2, Transform::Set, 0)],
    &[(Part::BlockFront, 4, Transform::Set, 0)],
    &[(Part::BlockFront, 0, Transform::Set, 0)],
];

/// The attacks on an seSparse extent, the first file beside a descriptor: 27 fields of the header that does not change,
/// and 5 of the other one.
pub(super) const SE_SPARSE: &[&[FieldChange]] = &[
    &[header(2, Transform::Add, 1)],
    &[header(6, Transform::Set, 16)],
    &[header(8, Transform::Set, 128)],
    &[header(10, Transform::Set, 1)],
    &[header(12, Transform::Set, 1)],
    &[header(18, Transform::Set, 1)],
    &[header(20, Transform::Add, 1)],
    &[header(32, Transform::Flip, 54)],
    &[header(34, Transform::Flip, 20)],
    &[header(52, Transform::Set, 1)],
    &[header(54, Transform::Add, 1)],
    &[header(60, Transform::Set, 1)],
    &[header(62, Transform::Set, 1)],
];
