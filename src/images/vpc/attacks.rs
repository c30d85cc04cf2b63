//! The attacks of known meaning on VHD images. The fields have the order of `docs/bytecode.md`: `nth` is twice the
//! number of a field, or one more if the attack corrects the checksum. If a structure has a copy, the attack changes
//! both. If the image has no copy, `nth` names the structure itself once more, so that these attacks set values and do
//! not flip bits.

use crate::formats::anatomy::Part;
use crate::images::damage::{FieldChange, Transform};
use crate::images::field_changes::{entry, header, set};

/// The attacks on VHD. A dynamic disk has 13 fields of the footer, 7 of the dynamic header, and 13 of the other footer.
pub const ATTACKS: &[&[FieldChange]] = &[
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
