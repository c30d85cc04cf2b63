//! The attacks of known meaning on VMDK images. The fields have the order of `docs/bytecode.md`: `nth` is twice the
//! number of a field, or one more if the attack corrects the checksum. If a structure has a copy, the attack changes
//! both. If the image has no copy, `nth` names the structure itself once more, so that these attacks set values and do
//! not flip bits.

use crate::formats::anatomy::Part;
use crate::images::damage::{FieldChange, Transform};
use crate::images::field_changes::{header, item};

/// The attacks on VMDK. If there is a footer, its header begins with the 17th field behind that of the header.
pub const ATTACKS: &[&[FieldChange]] = &[
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
pub const SE_SPARSE: &[&[FieldChange]] = &[
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
