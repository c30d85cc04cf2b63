//! The attacks of known meaning on VDI images: `nth` is twice the number of a field.

use crate::images::damage::{FieldChange, Transform};
use crate::images::field_changes::header;

/// The attacks on VDI.
pub const ATTACKS: &[&[FieldChange]] = &[
    &[header(18, Transform::Boundary, 17)],
    &[header(4, Transform::Add, 1)],
    &[header(12, Transform::Add, 1)],
    &[header(14, Transform::Add, 1)],
    &[header(16, Transform::Set, 1024)],
    &[header(20, Transform::Set, 4096)],
    &[header(24, Transform::Set, 0)],
    &[header(32, Transform::Set, 1)],
    &[header(38, Transform::Set, 1)],
    &[header(24, Transform::Boundary, 15)],
];
